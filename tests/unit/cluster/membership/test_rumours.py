"""News on their way."""

from postroad.cluster.membership import MemberRecord, MemberState
from postroad.cluster.membership.gossip import GossipQueue, record_size, retransmit_limit
from tests.support.cluster.membership import make_record

ROOM = 100_000


def take(rumours: GossipQueue, room: int = ROOM, *, times_max: int = 100) -> list[MemberRecord]:
    return rumours.pop_batch(room, times_max=times_max, full_bytes_max=room)


def names(records: list[MemberRecord]) -> list[str]:
    return [record.name for record in records]


def test_news_are_told_so_often_and_then_dropped() -> None:
    rumours = GossipQueue()
    assert len(rumours) == 0
    assert take(rumours) == []
    rumours.add(make_record("a"))
    told = [names(take(rumours, times_max=3)) for _ in range(4)]
    assert told == [["a"], ["a"], ["a"], []]
    assert len(rumours) == 0

    rumours = GossipQueue()
    rumours.add(make_record("a"))
    for _ in range(5):
        take(rumours)
    assert names(take(rumours, times_max=3)) == ["a"]
    assert len(rumours) == 0

    for size, factor, times in [
        (1, 4, 4),
        (2, 4, 4),
        (9, 4, 4),
        (10, 4, 8),
        (99, 4, 8),
        (100, 4, 12),
        (999, 3, 9),
    ]:
        assert retransmit_limit(size, factor) == times, size


def test_the_least_told_come_first_and_every_news_gets_its_turn() -> None:
    rumours = GossipQueue()
    for name in ("a", "b"):
        rumours.add(make_record(name))
    take(rumours)
    rumours.add(make_record("c"))
    room_for_one = record_size(make_record("c"))
    assert names(take(rumours, room_for_one)) == ["c"]
    assert names(take(rumours, room_for_one)) == ["a"]
    assert names(take(rumours, room_for_one)) == ["b"]

    rumours = GossipQueue()
    for name in "abcde":
        rumours.add(make_record(name))
    room_for_two = 2 * record_size(make_record("a"))
    told = [name for _ in range(5) for name in names(take(rumours, room_for_two))]
    assert sorted(told) == sorted("abcde" * 2)


def test_newer_news_replace_older_ones_and_forgotten_ones_are_not_told() -> None:
    rumours = GossipQueue()
    rumours.add(make_record("a"))
    take(rumours, times_max=2)
    newer = make_record("a", MemberState.SUSPECT)
    rumours.add(newer)
    assert len(rumours) == 1
    assert take(rumours, times_max=2) == [newer]
    assert take(rumours, times_max=2) == [newer]
    assert take(rumours, times_max=2) == []

    rumours = GossipQueue()
    rumours.add(make_record("a"))
    rumours.add(make_record("b"))
    rumours.drop("a")
    rumours.drop("nobody")
    assert names(take(rumours)) == ["b"]


def test_no_more_is_told_than_fits() -> None:
    rumours = GossipQueue()
    for name in "abc":
        rumours.add(make_record(name))
    size = record_size(make_record("a"))
    assert take(rumours, size - 1) == []
    assert len(take(rumours, 3 * size - 1)) == 2

    rumours = GossipQueue()
    large = make_record("a", properties={"key": "x" * 1_000})
    rumours.add(large)
    assert rumours.pop_batch(1_200, times_max=9, full_bytes_max=600) == [large.without_properties()]
    assert rumours.pop_batch(2_400, times_max=9, full_bytes_max=1_200) == [large]
