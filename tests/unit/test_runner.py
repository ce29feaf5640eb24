"""How a function of a runner is called, and what its errors become."""

from __future__ import annotations

import types

import pytest
import salt.exceptions
import salt.utils.args
from salt.exceptions import CommandExecutionError, SaltInvocationError

from saltext.jobs.core import runner
from saltext.jobs.core.errors import JobCacheError, Refused

SOURCE = """
__virtualname__ = "batch"
__func_alias__ = {"list_": "list"}

@verb
def status(jid, deep=False):
    '''How it stands.'''
    return jid, deep

@verb
def list_(limit=20):
    return limit

@verb
def start(tgt, fun, *args, **options):
    return tgt, fun, args, options

@verb
def fail(error):
    raise error

@verb
def whoami():
    return __user__
"""


class Event:
    """What Salt puts into a runner's globals, as far as it matters here."""

    def __init__(self, prints=True):
        self.print_func = print if prints else None


@pytest.fixture
def module():
    found = types.ModuleType("a_runner")
    found.__dict__.update(verb=runner.verb, __opts__={}, __jid_event__=Event())
    exec(SOURCE, found.__dict__)
    return found


def refusal(call, *args, **kwargs):
    with pytest.raises(Refused) as refused:
        call(*args, **kwargs)
    return str(refused.value)


def test_arguments_arrive_by_place_and_by_name(module):
    assert module.status("1") == ("1", False)
    assert module.status(jid="1", deep=True) == ("1", True)
    assert module.start("*", "test.ping", "a", b=1) == ("*", "test.ping", ("a",), {"b": 1})


def test_an_unknown_option_is_refused_with_what_must_have_been_meant(module):
    assert refusal(module.list_, limt=3) == "batch.list has no option limt; did you mean limit?"
    assert refusal(module.status, "1", colour=3) == "batch.status has no option colour; it accepts jid, deep"


def test_a_missing_argument_is_refused_by_its_name(module):
    assert refusal(module.status).startswith("batch.status needs jid;")
    assert refusal(module.start, "*").startswith("batch.start needs fun;")


def test_too_many_arguments_are_refused_with_the_first_that_is_too_much(module):
    assert refusal(module.status, "1", True, "x") == "batch.status does not know what 'x' is for; it takes jid and deep"


def test_an_argument_that_is_given_twice_is_refused(module):
    assert refusal(module.status, "1", jid="2") == "batch.status is given jid twice: '1' and '2'"


@pytest.mark.parametrize(
    "error",
    [SaltInvocationError("so\nnot"), CommandExecutionError("so not"), JobCacheError("so  not"), Refused("so not")],
)
def test_every_refusal_is_one_line_and_salt_shows_only_its_message(module, error):
    with pytest.raises(Refused) as refused:
        module.fail(error)
    assert str(refused.value) == "so not"
    # On this class rests what Salt prints (salt.client.mixins.SyncClientMixin.low).
    assert isinstance(refused.value, salt.exceptions.NotImplemented)
    assert isinstance(refused.value, CommandExecutionError)


@pytest.mark.parametrize("opts", [{}, {"fun": "other.function"}])
def test_a_function_that_another_one_calls_prints_nothing(module, capsys, opts):
    module.__opts__ = opts
    refusal(module.status)
    assert capsys.readouterr() == ("", "")
    assert module.__jid_event__.print_func is print


def test_salt_sees_a_function_that_takes_everything_and_its_documentation(module):
    spec = salt.utils.args.get_function_argspec(module.status)
    assert (spec.varargs, spec.keywords) == ("args", "kwargs")
    assert module.status.__doc__ == "How it stands."
    assert module.status.__name__ == "status"


@pytest.mark.parametrize("called", ["batch.list", "state.orchestrate", None])
def test_a_call_by_another_function_is_printed_as_salt_does(module, called):
    module.__opts__ = {"fun": called}
    before = module.__jid_event__.print_func
    module.status("1")
    assert module.__jid_event__.print_func is before


@pytest.mark.parametrize("error", [TypeError("oops"), KeyError("oops"), SystemExit(0), KeyboardInterrupt()])
def test_no_other_error_ends_with_success_either(module, error):
    assert refusal(module.fail, error).startswith("batch.fail ")
