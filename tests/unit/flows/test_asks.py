"""What code waits for: awaiting it hands it over."""

import pytest

from postroad.flows.asks import NOTHING, Ask, Fork, Outcome
from postroad.flows.records import Kind


class Wonder(Ask):
    __slots__ = ()
    kind = Kind.SIGNAL


async def await_it(it: Ask | Fork) -> object:
    return await it


@pytest.mark.parametrize("it", [Wonder("why"), Fork([])], ids=["ask", "fork"])
def test_it_is_handed_over_and_answered(it: Ask | Fork) -> None:
    coroutine = await_it(it)
    assert coroutine.send(None) is it
    with pytest.raises(StopIteration) as stop:
        coroutine.send("because")
    assert stop.value.value == "because"


def test_an_error_is_raised_where_it_waits() -> None:
    coroutine = await_it(Wonder("why"))
    coroutine.send(None)
    with pytest.raises(KeyError, match="no answer"):
        coroutine.throw(KeyError("no answer"))


def test_how_an_ask_is_shown() -> None:
    ask = Wonder("why", b"digest", 5)
    ask.position = (1, 2)
    assert ask.label == "1.2 signal(why)"
    assert repr(ask) == "<Wonder 1.2 signal(why)>"
    assert (ask.digest, ask.deadline_ms) == (b"digest", 5)


def test_by_default_it_is_about_no_session_and_gives_nothing() -> None:
    ask = Wonder("why")
    assert ask.sessions == ()
    assert ask.read(b"anything") is None
    assert not ask.is_immediate


def test_an_outcome_is_a_value_or_an_error() -> None:
    error = ValueError()
    assert (Outcome(1).value, Outcome(1).error) == (1, None)
    assert Outcome(error=error).error is error
    assert (NOTHING.value, NOTHING.error) == (None, None)
