"""Scenario `wire`: it passes with many seeds, and finds bugs that are planted."""

from typing import Any

import pytest

from postroad.core.errors import PeerTimeoutError
from postroad.net.connections.handler_tasks import Backlog
from postroad.testing import CRASH_EXIT_CODE
from postroad.wire import NEVER, DeadlineMap, WireConnection
from postroad.wire.codecs import Version3Codec
from postroad.wire.frame_reader import FrameReader
from postroad.wire.heartbeats import Heartbeats, PingHeartbeats
from tests.simulation.planting import CORRECTNESS, LIVENESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("wire", seeds)


@BUGS.replace(FrameReader, "feed", CORRECTNESS, 16)
def plant_byte_lost_at_split(feed: Any, reader: FrameReader, data: bytes) -> Any:
    frames = feed(reader, data)
    if len(reader.rest) == 30:
        reader.rest.pop()
    return frames


@BUGS.replace(DeadlineMap, "pop_expired", LIVENESS, 3)
def plant_no_expiry(_: Any, pending: DeadlineMap[object], now: float) -> list[tuple[int, object]]:
    pending.next_deadline = NEVER
    return []


@BUGS.replace(DeadlineMap, "pop_expired", CORRECTNESS, 3)
def plant_early_expiry(take: Any, pending: DeadlineMap[object], now: float) -> Any:
    return take(pending, now + 1)


@BUGS.replace(Heartbeats, "tick", LIVENESS, 17)
def plant_endless_timeout(
    tick: Any, self: Heartbeats, now: float, last_read: float, last_write: float
) -> None:
    tick(self, now, now, last_write)


@BUGS.replace(PingHeartbeats, "tick", CORRECTNESS, 14)
def plant_impatience(
    tick: Any, self: PingHeartbeats, now: float, last_read: float, last_write: float
) -> None:
    if now > last_read + self.interval_s:
        raise PeerTimeoutError("too soon")
    tick(self, now, last_read, last_write)


@BUGS.replace(PingHeartbeats, "__init__", CORRECTNESS, 0)
def plant_no_heartbeats(init: Any, self: PingHeartbeats, *settings: float) -> None:
    init(self, *settings)
    self.interval_s = NEVER


@BUGS.replace(Version3Codec, "encode_reply", CORRECTNESS, 0)
def plant_second_reply(
    encode: Any, self: Version3Codec, out: list[bytes], id: int, *more: object
) -> None:
    for _ in range(2):
        encode(self, out, id, *more)


@BUGS.replace(Version3Codec, "encode_reply", CORRECTNESS, 0)
def plant_wrong_id(
    encode: Any, self: Version3Codec, out: list[bytes], id: int, *more: object
) -> None:
    encode(self, out, max(1, id - 1), *more)


@BUGS.replace(WireConnection, "receive_data", CRASH_EXIT_CODE, 0)
def plant_exception(receive: Any, self: WireConnection, data: bytes, now: float) -> Any:
    if len(data) == 5:
        raise IndexError("five bytes")
    return receive(self, data, now)


@BUGS.replace(Backlog, "pop_first", CORRECTNESS, 0)
def plant_request_handled_twice(pop: Any, self: Backlog) -> Any:
    first = pop(self)
    self.add(*first)
    return first


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("wire", monkeypatch)
