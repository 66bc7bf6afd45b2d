"""Scenario `wire`: it passes with many seeds, and finds bugs that are planted."""

from typing import Any

import pytest

from postroad.core.errors import PeerTimeoutError
from postroad.testing import CRASH
from postroad.wire import NEVER, DeadlineMap, WireConnection
from postroad.wire.frame_reader import FrameReader
from postroad.wire.heartbeats import Heartbeats, PingHeartbeats
from tests.simulation.planting import CORRECTNESS, LIVENESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("wire", seeds)


@BUGS.replace(FrameReader, "feed", CORRECTNESS, 5)
def plant_byte_lost_at_split(feed: Any, reader: FrameReader, data: bytes) -> Any:
    frames = feed(reader, data)
    if len(reader._rest) == 30:
        reader._rest.pop()
    return frames


@BUGS.replace(DeadlineMap, "pop_expired", LIVENESS, 2)
def plant_no_expiry(_: Any, pending: DeadlineMap[object], now: float) -> list[tuple[int, object]]:
    pending.next_deadline = NEVER
    return []


@BUGS.replace(DeadlineMap, "pop_expired", CORRECTNESS, 2)
def plant_early_expiry(take: Any, pending: DeadlineMap[object], now: float) -> Any:
    return take(pending, now + 1)


@BUGS.replace(Heartbeats, "tick", LIVENESS, 8)
def plant_endless_patience(
    tick: Any, self: Heartbeats, now: float, last_read: float, last_write: float
) -> None:
    tick(self, now, now, last_write)


@BUGS.replace(PingHeartbeats, "tick", CORRECTNESS, 2)
def plant_impatience(
    tick: Any, self: PingHeartbeats, now: float, last_read: float, last_write: float
) -> None:
    if now > last_read + self.interval_s:
        raise PeerTimeoutError("too soon")
    tick(self, now, last_read, last_write)


@BUGS.replace(PingHeartbeats, "__init__", CORRECTNESS, 2)
def plant_no_heartbeats(init: Any, self: PingHeartbeats, *settings: float) -> None:
    init(self, *settings)
    self.interval_s = NEVER


@BUGS.replace(WireConnection, "reply", CORRECTNESS, 0)
def plant_second_answer(
    reply: Any, self: WireConnection, id: int, status: int, payload: bytes, *more: object
) -> None:
    for _ in range(2):
        reply(self, id, status, payload, *more)


@BUGS.replace(WireConnection, "reply", CORRECTNESS, 1)
def plant_wrong_id(
    reply: Any, self: WireConnection, id: int, status: int, payload: bytes, *more: object
) -> None:
    reply(self, max(1, id - 1), status, payload, *more)


@BUGS.replace(WireConnection, "receive_data", CRASH, 0)
def plant_exception(receive: Any, self: WireConnection, data: bytes, now: float) -> Any:
    if len(data) == 5:
        raise IndexError("five bytes")
    return receive(self, data, now)


@BUGS.plant(LIVENESS, 0)
def plant_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.testing.simulation.timeline.ACTIONS_MAX", 5_000)
    monkeypatch.setattr(WireConnection, "deadline", lambda self: 0.0)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("wire", monkeypatch)
