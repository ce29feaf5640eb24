"""Reads a return whose fields may hold anything: its function, and whether it has failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Retcodes have 32 bits, as exit codes do, so the engines can store them anywhere. Anything else is a failure.
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_NUMBER = re.compile(r"-?[0-9]{1,10}")
#: Most characters of a name: that of one function, or those of several, joined.
LONGEST_NAME = 1000


def retcode_of(ret: Mapping[str, Any]) -> int:
    """
    Return the exit code of a return whose fields may hold anything: 0 for success, at most 32 bits.

    ``retcode`` may be missing (then success decides), a number, or a dict or list with one for each of several functions
    (then the worst counts). ``success: False`` with a retcode of 0 is a failure too: that is how a minion reports a
    function it could not run. Anything else is a failure, and counts as 1.
    """
    code = ret.get("retcode")
    if type(code) is not int and isinstance(code, (Mapping, list, tuple)):
        codes = code.values() if isinstance(code, Mapping) else code
        number = max(map(_number, codes), default=0, key=abs)
    else:
        number = _number(code)
    return 1 if number == 0 and ret.get("success") is False else number


def _number(value: Any) -> int:
    if type(value) is int:
        return value if _LOWEST <= value <= _HIGHEST else 1
    if value is None:
        return 0
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)  # some job caches keep it as text
    # a database without integers returns a whole float; the limits keep out inf and nan
    if isinstance(value, (int, float)) and _LOWEST <= value <= _HIGHEST and value == int(value):
        return int(value)
    return 1


def function_of(data: Mapping[str, Any]) -> str:
    """Return the name of the function of a job or return; several are joined by commas. Empty if it is not a name."""
    fun = data.get("fun")
    if isinstance(fun, (list, tuple)) and len(fun) <= LONGEST_NAME and all(isinstance(name, str) for name in fun):
        fun = ",".join(fun)
    return fun if isinstance(fun, str) and len(fun) <= LONGEST_NAME else ""
