"""Who runs the tests: root in continuous integration, and anybody elsewhere."""

from __future__ import annotations

import os
import pwd

USER = pwd.getpwuid(os.geteuid()).pw_name
#: Somebody else, whom every machine has.
OTHER = "nobody" if USER == "root" else "root"
