"""Snapshots that wait for their turn."""

from postroad.cells.delivery.propagator import RoutingUpdateQueue
from postroad.cells.routing.advertisements import (
    AdvertisementQuery,
    AdvertisementUpdate,
    RouteAdvertisement,
)
from postroad.core.timing import NEVER


def snapshot(number: int) -> AdvertisementUpdate:
    return AdvertisementUpdate(1, number, RouteAdvertisement())


def test_update_queue_charged_peer_waits() -> None:
    update_queue = RoutingUpdateQueue(100)
    assert update_queue.deadline() == NEVER
    update_queue.put("a", snapshot(1))
    assert update_queue.deadline() <= 10.0
    assert update_queue.pop_ready(10.0) == [("a", snapshot(1))]
    assert update_queue.pop_ready(10.0) == []
    update_queue.charge("a", 50, 10.0)
    update_queue.charge("a", 150, 10.5)
    update_queue.put("a", snapshot(2))
    update_queue.put("b", snapshot(1))
    assert update_queue.pop_ready(11.9) == [("b", snapshot(1))]
    assert update_queue.deadline() == 12.0
    assert update_queue.pop_ready(12.0) == [("a", snapshot(2))]
    # Time in which it sent nothing is not saved up.
    update_queue.charge("a", 100, 50.0)
    update_queue.put("a", snapshot(3))
    assert update_queue.deadline() == 51.0


def test_update_queue_several_updates_keeps_latest() -> None:
    update_queue = RoutingUpdateQueue(100)
    for news in (snapshot(1), snapshot(3), snapshot(2)):
        update_queue.put("a", news)
    assert update_queue.pop_ready(0.0) == [("a", snapshot(3))]
    # What was not read is as new as it came.
    for unread in (snapshot(3), b"unread", AdvertisementQuery(), b"later", snapshot(1)):
        update_queue.put("a", unread)
    assert update_queue.pop_ready(0.0) == [("a", snapshot(1))]


def test_update_queue_reconnected_peer_stays_charged() -> None:
    update_queue = RoutingUpdateQueue(100)
    update_queue.charge("a", 100, 5.0)
    update_queue.put("a", snapshot(1))
    update_queue.discard("a")
    update_queue.discard("a")
    assert update_queue.pop_ready(9.0) == []
    update_queue.charge("a", 500, 9.0)
    update_queue.put("a", snapshot(1))
    assert update_queue.deadline() == 14.0


def test_update_queue_idle_peers_are_purged() -> None:
    update_queue = RoutingUpdateQueue(100)
    for number in range(5_000):
        update_queue.charge(f"peer {number}", 100, float(number))
    assert len(update_queue._ready_at) < 1_100
    update_queue.put("peer 4999", snapshot(1))
    assert update_queue.deadline() == 5_000.0
