"""
The wrapper around every function of a runner: it binds the arguments, makes each refusal one line, and has ``salt-run``
show the result as a table.

Salt itself answers a wrong call in one of these ways, on every release: an unknown option, or any TypeError
(SaltInvocationError is one), prints a page of documentation and ends with status 0; any other exception prints its
traceback; over the API an unknown option is dropped silently. Only for a ``salt.exceptions.NotImplemented`` does Salt
show just the message, with ``success`` False and status 1, on the command line, in an orchestration and over the API
alike (``salt.client.mixins.SyncClientMixin.low``). So every refusal is raised as ``errors.Refused``, a subclass of it.

Salt's own runners name their outputter in what they return: ``{"outputter": …, "data": …}``. All callers then get the data
in this wrapper, and Salt takes ``data`` for results of states (``low`` again). Ours return plain data; the outputter is
added only where the data goes to the terminal: in the function with which Salt prints the events of the job.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from salt.exceptions import SaltException

from saltext.jobs.core import lines
from saltext.jobs.core.display.text import clean
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.options import kinds

log = lines.logger(__name__)

#: The outputter that shows what our runners return (``output/jobs_table.py``).
OUTPUTTER = "jobs_table"


def verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Wrap a function that operators call: the wrapper takes any arguments, and refuses unknown ones. Errors become
    ``Refused``; on the command line that is one line on standard error.
    """
    signature = inspect.signature(function)
    call = _call

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(function, signature, args, kwargs)

    # Salt writes __user__, __jid_event__ and more into the globals of the called function: these must be the runner's
    # own. There is no __wrapped__, because Salt would use it to check the arguments in its own way.
    exposed = types.FunctionType(wrapper.__code__, function.__globals__, function.__name__, None, wrapper.__closure__)
    for name in ("__doc__", "__module__", "__qualname__"):
        setattr(exposed, name, getattr(function, name))
    exposed.__dict__["takes"] = signature  # for the documentation
    return exposed


def say(text: str) -> None:
    """Print a note, which is not part of the result, on one line of standard error."""
    sys.stderr.write(f"{clean(text)}\n")
    sys.stderr.flush()


def note(module: Mapping[str, Any], text: str) -> None:
    """Print a note, which is not part of the result, if the runner with these globals was called on the command line."""
    if _printer_of(module) is not None:
        say(text)


def _printer_of(module: Mapping[str, Any]) -> Any:
    """Return what fires and prints the events of the runner's job on the command line; None if it was called elsewhere."""
    event = module.get("__jid_event__")
    try:
        return event if getattr(event, "print_func", None) is not None else None
    except ReferenceError:  # Salt leaves a weak one
        return None


def _call(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    name = _name_of(function)
    # Salt adds names of its own, such as __pub_user; users of the API can add them too.
    given = {option: value for option, value in kwargs.items() if not option.startswith("__")}
    try:
        _check_call(name, signature, args, given)
        found = function(*args, **given)
        _show(function.__globals__, name)
        return found
    except Refused as exc:
        refusal = exc
    except SaltException as exc:
        refusal = Refused(str(exc))
    except (KeyboardInterrupt, SystemExit):  # Salt turns SystemExit into KeyboardInterrupt, with status 0
        refusal = Refused(f"{name} was interrupted")
    except Exception as exc:
        log.error("%s failed", name, exc_info=True)
        refusal = Refused(f"{name} failed: {type(exc).__name__}: {exc}")
    _show_refusal(function.__globals__, name, refusal)
    raise refusal from None


def _name_of(function: Callable[..., Any]) -> str:
    module = function.__globals__
    alias = module.get("__func_alias__", {}).get(function.__name__, function.__name__)
    return f"{module.get('__virtualname__')}.{alias}"


def _check_call(name: str, signature: inspect.Signature, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
    """Refuse a call that does not fit the function. :raises Refused: saying which part does not fit."""
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    named = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
    options = [item.name for item in named if item.kind is not item.VAR_POSITIONAL]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for option in given:
            if option not in options:
                raise Refused(_unknown(name, option, options))
    positional = [item.name for item in named if item.kind is item.POSITIONAL_OR_KEYWORD]
    if inspect.Parameter.VAR_POSITIONAL not in kinds and len(args) > len(positional):
        accepted = f"; it takes {' and '.join(positional)}" if positional else ""
        raise Refused(f"{name} does not know what {args[len(positional)]!r} is for{accepted}")
    twice = [option for option in positional[: len(args)] if option in given]
    if twice:
        raise Refused(f"{name} is given {twice[0]} twice: {args[positional.index(twice[0])]!r} and {given[twice[0]]!r}")
    needed = [item.name for item in named if item.default is item.empty and item.name in positional[len(args) :]]
    missing = [option for option in needed if option not in given]
    if missing:
        kept = "; Salt keeps some words of a step for itself: give it in `arg` or `kwarg`" if is_step() else ""
        raise Refused(f"{name} needs {' and '.join(missing)}; salt-run -d {name} describes it{kept}")


def _unknown(name: str, option: str, options: list[str]) -> str:
    meant = kinds.slip_of(option, options)
    if meant:
        return f"{name} has no option {option}; did you mean {meant}?"
    return f"{name} has no option {option}; it accepts {', '.join(options) or 'none'}"


def _show(module: Mapping[str, Any], name: str) -> None:
    """If ``salt-run`` called this very function, have it show the result with our outputter, unless another is chosen."""
    event = _called_by_salt_run(module, name)
    if event is None:
        return
    salts_own = event.print_func

    def shown(suffix: str, data: Any) -> None:
        if suffix == "ret" and isinstance(data, Mapping) and "return" in data:
            data = {**data, "return": {"outputter": OUTPUTTER, "data": data["return"]}}
        salts_own(suffix, data)

    event.print_func = shown


def _show_refusal(module: Mapping[str, Any], name: str, refusal: Refused) -> None:
    """
    If ``salt-run`` called this very function, write the refusal to standard error, and have Salt print nothing; or only
    ``false``, if an outputter was chosen (``--out``, ``output:``), since a script may parse that. Other callers just get the
    exception. If the reactor or a schedule called, it is logged, because nobody would see it.
    """
    event = _called_by_salt_run(module, name)
    if event is not None:
        if module["__opts__"].get("output") not in (None, OUTPUTTER):
            event.print_func("ret", {"return": False})
        event.print_func = None
        say(str(refusal))
    elif module.get("__user__") == "Reactor" or _is_called_by("salt.utils.schedule"):
        log.warning("%s was refused: %s", name, refusal)


def is_step() -> bool:
    """Tell whether a step of an orchestration (``salt.runner``) has called the runner."""
    return _is_called_by(".states.saltmod")


def _is_called_by(name: str) -> bool:
    """Tell whether a module calls us whose name ends with this one: Salt's loader puts words of its own before it."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and not str(frame.f_globals.get("__name__")).endswith(name):
        frame = frame.f_back
    return frame is not None


def _called_by_salt_run(module: Mapping[str, Any], name: str) -> Any:
    """Return the object that fires and prints the events of the job if ``salt-run`` was given this function; else None."""
    return _printer_of(module) if module.get("__opts__", {}).get("fun") == name else None
