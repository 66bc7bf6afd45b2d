"""The table of calls that wait for an answer."""

import math

from postroad.services.calls import Added, PendingCalls


def make_calls(pending_max: int = 10) -> PendingCalls[str]:
    return PendingCalls(pending_max)


def test_answer_is_taken_once_and_too_many_calls_are_refused() -> None:
    calls = make_calls()
    assert calls.add("1", "one", node_id="a") is Added.ADDED
    assert "1" in calls
    assert calls.take("1") == "one"
    assert calls.take("1") is None
    assert calls.take("never") is None
    assert calls.orphans == 2
    calls = make_calls(1)
    calls.add("1", "one")
    assert calls.add("2", "two") is Added.FULL
    assert calls.add("1", "again") is Added.KNOWN
    calls.take("1")
    assert calls.add("2", "two") is Added.ADDED
    assert repr(calls) == "<PendingCalls: 1 of 1, 0 orphans>"


def test_calls_to_a_lost_node_are_given_back_or_kept() -> None:
    calls = make_calls()
    for id, node_id in (("1", "a"), ("2", "b"), ("3", "a"), ("4", None)):
        calls.add(id, f"call {id}", node_id=node_id)
    assert calls.lose_node("a") == ["call 1", "call 3"]
    assert calls.lose_node("a") == []
    assert len(calls) == 2
    for id, node_id in (("1", "a"), ("2", "b"), ("3", "a")):
        calls.add(id, f"call {id}", node_id=node_id)
    assert calls.lose_node("a", lambda it: it == "call 3") == ["call 3"]
    assert "1" in calls


def test_calls_time_out_in_order_or_are_drained() -> None:
    calls = make_calls()
    calls.add("1", "one", deadline=5)
    calls.add("2", "two", deadline=3)
    calls.add("3", "three")
    assert calls.deadline() == 3
    assert calls.expire(2.9) == []
    assert calls.expire(5) == ["two", "one"]
    assert calls.deadline() == math.inf
    assert calls.take("2") is None
    calls = make_calls()
    calls.add("1", "one", deadline=3)
    calls.add("2", "two")
    assert calls.drain() == ["one", "two"]
    assert (len(calls), calls.deadline()) == (0, math.inf)


def test_id_that_is_used_again_has_its_new_deadline() -> None:
    calls = make_calls()
    calls.add("1", "first", deadline=3)
    assert calls.give_up("1") == "first"
    assert calls.give_up("1") is None
    calls.add("1", "second", deadline=9)
    assert calls.deadline() == 9
    assert calls.expire(8) == []
    assert calls.orphans == 0
    calls = make_calls()
    calls.add("1", "first", deadline=3)
    calls.take("1")
    calls.add("1", "second", deadline=9)
    assert calls.expire(8) == []
    assert calls.expire(9) == ["second"]
    calls = make_calls()
    calls.add("kept", "kept", deadline=2_000)
    for number in range(5_000):
        calls.add(str(number), "short", deadline=1_000 + number)
        calls.take(str(number))
    assert len(calls._times) < 1_000
    assert calls.deadline() == 2_000
