"""
One returner from Salt's loader, with reliable errors: every failure is raised. And whether it can be recorded into.

It blocks: use it in one Worker of its own. It must never treat a returner's failure as a success. Many of Salt's returners
(pgjsonb, mysql, …) catch the errors of their database, log them, and go on. So an error that a returner logs while it
stores counts as raised.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import salt.loader

from saltext.jobs.core import loader
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.errors import JobsError, SettingsError
from saltext.jobs.core.master.job_cache import OURS
from saltext.jobs.core.options import engine_options, read_settings
from saltext.jobs.core.options.engines import NoticesSettings, RecorderSettings
from saltext.jobs.core.options.kinds import slip_of
from saltext.jobs.core.store.store import COPY

#: The section of the options of notices.
NOTICES = "job_notices"
#: The returner that writes a return piece by piece.
_RAWFILE = "rawfile_json"


class ReturnerAbsent(JobsError):
    """The loader has no such returner, or the returner lacks this function."""


class Complained(JobsError):
    """A returner logged an error instead of raising it, and had caught no exception that could be raised instead."""


class ReturnerModule:
    """A returner. ``ret_config``: prefix of its alternative configuration, as ``salt --return_config`` takes it."""

    def __init__(self, opts: Mapping[str, Any], name: str, ret_config: str = "") -> None:
        self.name = name
        self._opts = {**promoted(opts, ret_config), COPY: True}
        self._loaded: Any = None

    def why_absent(self) -> str:
        """Return why there is no such returner; empty if there is."""
        try:
            self._modules()
        except ReturnerAbsent as exc:
            return str(exc)
        return ""

    def store_return(self, ret: Mapping[str, Any]) -> None:
        """Hand one return to the returner. :raises Exception: anything that it raises, or has caught and logged."""
        if self.name == _RAWFILE:  # it would leave an unfinished line
            json.dumps(ret, ensure_ascii=False).encode()
        self._call("returner", dict(ret))

    def store_load(self, jid: str, load: Mapping[str, Any]) -> None:
        """
        Hand a job's load to the returner; without minions, which prove to a job cache that this master published the job:
        the recorder cannot vouch for that. Raises as ``store_return``.
        """
        self._call("save_load", jid, dict(load))

    def store_many(self, records: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """
        Hand many records to a returner that has ``store_many``, a function of this extension's own. Each is a dict with
        ``kind`` (``load``, ``return``), ``time`` (Unix time), ``data``, ``jid``, and ``minion`` of a return.

        :return: ``{position: reason}`` of those that it cannot store; all others are stored.
        :raises Exception: when none is stored, or that is unknown. Then all may be passed again, also stored ones.
        """
        return dict(self._call("store_many", list(records)))

    @property
    def takes_loads(self) -> bool:
        """Whether it is to get loads: one that cannot be loaded now may take them later."""
        return self.has("store_many") or self.has("save_load") or bool(self.why_absent())

    def has(self, function: str) -> bool:
        """Tell whether there is such a returner, and it has a function."""
        # Salt's loader would load all modules there are, to look for a function that this one lacks.
        return not self.why_absent() and hasattr(sys.modules[self._function("returner").__module__], function)

    def returns(self, jid: str) -> dict[str, Any]:
        """Return what the returner has of a job: ``{minion: …}``. Raises as ``store_return``."""
        found = self._call("get_jid", jid)
        return dict(found) if isinstance(found, Mapping) else {}

    def _call(self, function: str, *args: Any) -> Any:
        call = self._function(function)
        with _heard(logging.getLogger(call.__module__)) as complaints:
            found = call(*args)
        if complaints:
            message, caught = complaints[0]
            raise caught or Complained(message)
        return found

    def _function(self, function: str) -> Any:
        try:
            return self._modules()[f"{self.name}.{function}"]
        except KeyError:
            raise ReturnerAbsent(f"The returner {self.name!r} has no {function}") from None

    def _modules(self) -> Any:
        if self._loaded is None:
            base = loader.base_of(self)
            utils = salt.loader.utils(self._opts, loaded_base_name=base)
            functions = salt.loader.minion_mods(self._opts, utils=utils, loaded_base_name=base)
            self._loaded = salt.loader.returners(self._opts, functions, loaded_base_name=base)
        # A loader that does not find a function loads all modules, also those that complain where there are no grains.
        with _heard(logging.getLogger("salt.loader.lazy"), logging.WARNING) as complaints:
            is_there = f"{self.name}.returner" in self._loaded
        if not is_there:
            why = self._loaded.missing_fun_string(f"{self.name}.returner").rstrip(".")
            known = {name.removesuffix("_return") for name in self._loaded.file_mapping} - {self.name}
            hint = f"; did you mean {meant}?" if (meant := slip_of(self.name, known)) else ""
            own = [
                f"{told} {caught}" for told, caught in complaints if f" {self.name}," in told
            ]  # it has a syntax error
            raise ReturnerAbsent(f"The returner {self.name!r} cannot be loaded: {own[0] if own else why + hint}")
        return self._loaded


def promoted(opts: Mapping[str, Any], ret_config: str) -> dict[str, Any]:
    """
    Return options in which an alternative configuration (``<ret_config>.<option>``) replaces the usual one: Salt has only
    returns name theirs; ``save_load`` and ``get_jid`` always use the usual one.
    """
    result = dict(opts)
    if not ret_config:
        return result
    prefix = f"{ret_config}."
    for name, value in opts.items():
        if name.startswith(prefix):
            _promote(result, name[len(prefix) :], value)
    return result


def _promote(opts: dict[str, Any], name: str, value: Any) -> None:
    usual = opts.get(name)
    opts[name] = {**usual, **value} if isinstance(usual, Mapping) and isinstance(value, Mapping) else value
    # A returner looks into the mapping ``returner.x`` before it looks for ``returner.x.host``.
    head, _, tail = name.rpartition(".")
    if isinstance(opts.get(head), Mapping):
        opts[head] = {**opts[head], tail: value}


@contextlib.contextmanager
def _heard(logger: logging.Logger, least: int = logging.ERROR) -> Iterator[list[tuple[str, BaseException | None]]]:
    """
    Yield what this thread logs with ``logger``, of the ``least`` level or above, while the block runs: (message, exception).
    It is not logged: a returner's message that it drops a return would be wrong, since the recorder keeps it.
    """
    complaints: list[tuple[str, BaseException | None]] = []
    thread = threading.get_ident()

    def listen(record: logging.LogRecord) -> bool:
        if record.levelno < least or record.thread != thread:
            return True
        complaints.append((record.getMessage(), sys.exc_info()[1]))
        return False

    if not logger.isEnabledFor(least):  # it stays so: another thread may listen to the same returner
        logger.setLevel(least)
    logger.addFilter(listen)
    try:
        yield complaints
    finally:
        logger.removeFilter(listen)


def notices_of(opts: Mapping[str, Any]) -> NoticesSettings:
    """Return the options of notices. :raises SettingsError: when they make no sense."""
    return read_settings(NoticesSettings, NOTICES, opts.get(NOTICES))


def settings_of(opts: Mapping[str, Any], *sources: Any) -> RecorderSettings:
    """Return the options of the recorder, as ``read_settings`` takes them. :raises SettingsError: also for notices."""
    recorder = read_settings(RecorderSettings, JOB_RECORDER, *(sources or engine_options(opts, JOB_RECORDER)))
    if not notices_of(opts).targets and not recorder.returners:
        raise SettingsError(
            f"{JOB_RECORDER}: returners is not set; accepted is a list of returners, such as ['pgjsonb']. For notices only, "
            f"set url or returners under {NOTICES}"
        )
    job_cache = opts.get("master_job_cache", "local_cache")
    if recorder.returners and job_cache != OURS:
        raise SettingsError(
            f"{JOB_RECORDER} needs master_job_cache: {OURS}, which is {job_cache!r}: it records what that job cache has"
        )
    for choice in recorder.returners:
        leads_elsewhere = choice.ret_config and promoted(opts, choice.ret_config) != dict(opts)
        if choice.returner in (job_cache, opts.get("ext_job_cache")) and not leads_elsewhere:
            raise SettingsError(
                f"{JOB_RECORDER}: returners has {choice.label!r}, which is this master's job cache and has everything "
                "already; accepted is another returner, or this one with a ret_config whose options lead elsewhere"
            )
    return recorder
