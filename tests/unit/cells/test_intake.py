"""Snapshots that wait for their turn."""

from postroad.cells import AdvertisementQuery, AdvertisementUpdate, RouteAdvertisement
from postroad.cells.delivery.update_intake import Intake
from postroad.core.timing import NEVER


def snapshot(number: int) -> AdvertisementUpdate:
    return AdvertisementUpdate(1, number, RouteAdvertisement())


def test_what_a_peer_has_cost_it_waits_for() -> None:
    intake = Intake(100)
    assert intake.deadline() == NEVER
    intake.put("a", snapshot(1))
    assert intake.deadline() <= 10.0
    assert intake.take(10.0) == [("a", snapshot(1))]
    assert intake.take(10.0) == []
    intake.charge("a", 50, 10.0)
    intake.charge("a", 150, 10.5)
    intake.put("a", snapshot(2))
    intake.put("b", snapshot(1))
    assert intake.take(11.9) == [("b", snapshot(1))]
    assert intake.deadline() == 12.0
    assert intake.take(12.0) == [("a", snapshot(2))]
    # Time in which it sent nothing is not saved up.
    intake.charge("a", 100, 50.0)
    intake.put("a", snapshot(3))
    assert intake.deadline() == 51.0


def test_of_each_peer_only_the_latest_counts() -> None:
    intake = Intake(100)
    for news in (snapshot(1), snapshot(3), snapshot(2)):
        intake.put("a", news)
    assert intake.take(0.0) == [("a", snapshot(3))]
    # What was not read is as new as it came.
    for unread in (snapshot(3), b"unread", AdvertisementQuery(), b"later", snapshot(1)):
        intake.put("a", unread)
    assert intake.take(0.0) == [("a", snapshot(1))]


def test_a_peer_that_comes_back_has_not_paid_yet() -> None:
    intake = Intake(100)
    intake.charge("a", 100, 5.0)
    intake.put("a", snapshot(1))
    intake.drop("a")
    intake.drop("a")
    assert intake.take(9.0) == []
    intake.charge("a", 500, 9.0)
    intake.put("a", snapshot(1))
    assert intake.deadline() == 14.0


def test_peers_that_owe_nothing_are_forgotten() -> None:
    intake = Intake(100)
    for number in range(5_000):
        intake.charge(f"peer {number}", 100, float(number))
    assert len(intake._ready_at) < 1_100
    intake.put("peer 4999", snapshot(1))
    assert intake.deadline() == 5_000.0
