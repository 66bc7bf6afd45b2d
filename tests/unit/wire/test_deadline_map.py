"""Waiters with deadlines, served by one timer."""

from postroad.core.timing import NEVER
from postroad.wire.deadline_map import DeadlineMap


def test_a_reply_takes_its_waiter_once() -> None:
    pending: DeadlineMap[str] = DeadlineMap()
    assert len(pending) == 0
    assert pending.next_deadline == NEVER
    assert pending.pop(1) is None
    assert pending.pop_expired(1e9) == []
    assert pending.pop_all() == []
    pending.add(7, "seven", 10)
    assert pending.pop(8) is None, "a reply nobody asked for"
    assert pending.pop(7) == "seven"
    assert pending.pop(7) is None


def test_deadline_map_pop_expired_updates_the_next_deadline() -> None:
    pending: DeadlineMap[str] = DeadlineMap()
    for id, deadline in ((1, 10), (2, 5), (3, 20)):
        pending.add(id, str(id), deadline)
    assert pending.next_deadline == 5
    assert pending.pop_expired(4.9) == []
    assert pending.pop_expired(10) == [(1, "1"), (2, "2")]
    assert pending.next_deadline == 20
    assert pending.pop_expired(20) == [(3, "3")]
    assert pending.next_deadline == NEVER

    pending = DeadlineMap()
    pending.add(1, "one", 5)
    pending.add(2, "two", 10)
    pending.pop(1)
    assert pending.next_deadline == 5
    assert pending.pop_expired(5) == []
    assert pending.next_deadline == 10

    pending = DeadlineMap()
    pending.add(1, "one", 5)
    pending.add(2, "two", 10)
    assert pending.pop_all() == [(1, "one"), (2, "two")]
    assert len(pending) == 0
    assert pending.next_deadline == NEVER
