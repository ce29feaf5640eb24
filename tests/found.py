"""What a doctor says."""

from __future__ import annotations

from saltext.jobs.core.findings import FAULT, Finding

#: Of a master that drops what minions have not signed.
SIGNED = {
    "require_minion_sign_messages": True,
    "drop_messages_signature_fail": True,
    "signing_algorithm": "PKCS1v15-SHA1",
}


def said(found, severity=None):
    """The sentences of what a doctor returns, or of a list of findings: all, or those of one severity."""
    if isinstance(found, dict):
        assert found["faults"] == sum(one["severity"] == FAULT for one in found["findings"])
        assert found["retcode"] == int(found["faults"] > 0)
        found = [Finding(**one) for one in found["findings"]]
    return [str(one) for one in found if severity in (None, one.severity)]
