"""What code waits for: awaiting it hands it over."""

import pytest

from postroad.flows.asks import NOTHING, Ask, Fork, Outcome
from postroad.flows.records import Kind
from tests.support.cases import naming


class Wonder(Ask):
    __slots__ = ()
    kind = Kind.SIGNAL


async def await_it(it: Ask | Fork) -> object:
    return await it


def test_ask_is_handed_over_and_answered_or_raises() -> None:
    for it in (Wonder("why"), Fork([])):
        coroutine = await_it(it)
        assert coroutine.send(None) is it, it
        with naming(it), pytest.raises(StopIteration) as stop:
            coroutine.send("because")
        assert stop.value.value == "because", it
    coroutine = await_it(Wonder("why"))
    coroutine.send(None)
    with pytest.raises(KeyError, match="no answer"):
        coroutine.throw(KeyError("no answer"))


def test_ask_shows_itself_and_has_defaults() -> None:
    ask = Wonder("why", b"digest", 5)
    ask.position = (1, 2)
    assert ask.label == "1.2 signal(why)"
    assert repr(ask) == "<Wonder 1.2 signal(why)>"
    assert (ask.digest, ask.deadline_ms) == (b"digest", 5)
    ask = Wonder("why")
    assert ask.sessions == ()
    assert ask.read(b"anything") is None
    assert not ask.is_immediate
    error = ValueError()
    assert (Outcome(1).value, Outcome(1).error) == (1, None)
    assert Outcome(error=error).error is error
    assert (NOTHING.value, NOTHING.error) == (None, None)
