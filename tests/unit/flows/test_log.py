"""Code against its record: what fits, and how the difference is told."""

from typing import Any

import pytest

from postroad.flows.asks import Ask
from postroad.flows.errors import FlowMismatch, StepFailed
from postroad.flows.log import Diverged, Log, outcome_of
from postroad.flows.messages import SessionKey
from postroad.flows.records import Kind, Position, Record
from postroad.flows.requests import Close, Open, Patch, Receive, Send, Signal, Sleep, Step
from postroad.flows.session import SessionEnd
from postroad.flows.values import describe_error, encode
from tests.support.cases import each


def charge(amount: int) -> int:
    return amount


def step(*args: Any, name: str = "charge", position: Position = (0,)) -> Step:
    ask = Step(charge, args, {}, name=name, retry=None, timeout_s=None)
    ask.position = position
    return ask


def placed(ask: Any, position: Position = (0,)) -> Any:
    ask.position = position
    return ask


def record_of(ask: Ask, **facts: Any) -> Record:
    known: dict[str, Any] = {
        "position": ask.position,
        "kind": ask.kind,
        "name": ask.name,
        "digest": ask.digest,
        "sessions": ask.sessions,
        "at_ms": 5,
    }
    return Record(**known | facts)


def end(number: int = 1) -> SessionEnd:
    return SessionEnd(SessionKey(1, number), "beta", number, is_initiator=True)


def test_log_is_taken_step_by_step() -> None:
    asks = [step(1, position=(0,)), step(2, position=(1,))]
    records = [record_of(it) for it in asks]
    log = Log(records)
    assert not log.is_over
    assert log.upcoming is records[0]
    assert log.has_next(asks[0])
    assert not log.has_next(asks[1])
    assert [log.take(it) for it in asks] == records
    assert log.is_over
    assert not log.has_next(asks[1])
    for digest in (b"", b"of before"):
        ask = step(object())
        assert ask.digest == b"", digest
        record = record_of(ask, digest=digest)
        assert Log([record]).take(ask) is record, digest


@each(
    (step(1), {"position": (3,)}, "another step comes first"),
    (step(1), {"kind": Kind.SLEEP}, "it was sleep, and is step"),
    (step(1), {"name": "refund"}, "it was about 'refund', and is about 'charge'"),
    (step(1), {"digest": b"other"}, "its arguments are others"),
    (
        placed(Send([end()], ("x",), [b"x"])),
        {"sessions": (2,)},
        r"it was about sessions \(2,\), and is about \(1,\)",
    ),
)
def test_differences(ask: Ask, facts: dict[str, Any], difference: str) -> None:
    log = Log([record_of(ask, **facts)])
    with pytest.raises(Diverged, match=difference) as diverged:
        log.take(ask)
    assert isinstance(diverged.value.mismatch, FlowMismatch)
    assert not log.is_over


def test_difference_is_told_with_what_is_around_it() -> None:
    assert not issubclass(Diverged, Exception)
    asks = [step(it, name=f"s{it}", position=(it,)) for it in range(7)]
    log = Log([record_of(it) for it in asks])
    for ask in asks[:4]:
        log.take(ask)
    with pytest.raises(Diverged) as diverged:
        log.take(step(4, name="new", position=(4,)))
    assert str(diverged.value.mismatch).splitlines() == [
        "the code of this flow does not fit its record at step 4:",
        "    step 1: 1 step(s1)",
        "    step 2: 2 step(s2)",
        "    step 3: 3 step(s3)",
        "  - step 4: 4 step(s4)   (recorded)",
        "  + step 4: the code asks for 4 step(new)",
        "    it was about 's4', and is about 'new'",
        "    and 2 more recorded after it",
        "  run the old code again, or keep both ways apart with flow.patched(id)",
    ]
    log = Log([record_of(step(1))])
    told = str(log.diverged("the code has ended").mismatch)
    assert "  + step 0: the code has ended" in told
    assert "more recorded" not in told


@each(
    (step(1), encode(5, "it"), 5),
    (placed(Sleep(1.0, 5)), None, None),
    (placed(Send([end()], ("x",), [b"x"])), None, None),
    (placed(Open([end()])), None, None),
    (placed(Close([end()])), None, None),
    (placed(Patch("p")), None, True),
    (placed(Signal("go", str)), encode("now", "it"), "now"),
    (placed(Receive([end()], int)), encode(3, "it"), 3),
)
def test_what_was_given_is_given_again(ask: Ask, value: bytes | None, expected: Any) -> None:
    outcome = outcome_of(ask, record_of(ask, value=value))
    assert (outcome.value, outcome.error) == (expected, None)


def test_errors_are_given_again_and_unreadable_values_do_not_fit() -> None:
    outcome = outcome_of(step(1), record_of(step(1), failure=describe_error(KeyError("x"))))
    assert type(outcome.error) is KeyError
    failure = describe_error(type("Gone", (Exception,), {})("x"))
    outcome = outcome_of(step(1), record_of(step(1), failure=failure))
    assert isinstance(outcome.error, StepFailed)
    ask = step(1)
    with pytest.raises(Diverged, match=r"0 step\(charge\) was given cannot be read any more"):
        outcome_of(ask, record_of(ask, value=encode("text", "it")))
