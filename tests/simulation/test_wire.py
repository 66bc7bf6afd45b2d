"""Scenario `wire`: it passes with many seeds, and finds bugs that are planted."""

import pytest

from postroad.core.errors import PeerSilent
from postroad.testing import CRASH, CorrectnessFailure, LivenessFailure
from postroad.wire import NEVER, Connection, Event, Frame, Pending
from postroad.wire.heartbeat import Heartbeats, PingHeartbeats
from postroad.wire.reader import FrameReader
from tests.simulation.planting import Plant, check_passed, runner_of

SEEDS = 100
# A planted bug must show within so many.
PLANTED_SEEDS = 200

run = runner_of("wire")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_seed(seed: int) -> None:
    check_passed(run(seed))


# The simulation finds what it is there for.


def plant_byte_lost_at_split(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = FrameReader.feed

    def forgetful(reader: FrameReader, data: bytes) -> list[Frame]:
        frames = feed(reader, data)
        if len(reader._rest) == 30:
            reader._rest.pop()
        return frames

    monkeypatch.setattr(FrameReader, "feed", forgetful)


def plant_no_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_nothing(pending: Pending[object], now: float) -> list[tuple[int, object]]:
        pending.next_deadline = NEVER
        return []

    monkeypatch.setattr(Pending, "take_expired", take_nothing)


def plant_early_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Pending.take_expired

    def take_early(pending: Pending[object], now: float) -> list[tuple[int, object]]:
        return take(pending, now + 1)

    monkeypatch.setattr(Pending, "take_expired", take_early)


def plant_endless_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = Heartbeats.tick

    def patient(self: Heartbeats, now: float, last_read: float, last_write: float) -> None:
        tick(self, now, now, last_write)

    monkeypatch.setattr(Heartbeats, "tick", patient)


def plant_impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = PingHeartbeats.tick

    def hasty(self: PingHeartbeats, now: float, last_read: float, last_write: float) -> None:
        if now > last_read + self.interval_s:
            raise PeerSilent("too soon")
        tick(self, now, last_read, last_write)

    monkeypatch.setattr(PingHeartbeats, "tick", hasty)


def plant_no_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    init = PingHeartbeats.__init__

    def mute(self: PingHeartbeats, *settings: float) -> None:
        init(self, *settings)
        self.interval_s = NEVER

    monkeypatch.setattr(PingHeartbeats, "__init__", mute)


def plant_second_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = Connection.reply

    def stutter(self: Connection, id: int, status: int, payload: bytes, *more: object) -> None:
        for _ in range(2):
            reply(self, id, status, payload, *more)  # type: ignore[arg-type]  # As they came.

    monkeypatch.setattr(Connection, "reply", stutter)


def plant_wrong_id(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = Connection.reply

    def confuse(self: Connection, id: int, status: int, payload: bytes, *more: object) -> None:
        reply(self, max(1, id - 1), status, payload, *more)  # type: ignore[arg-type]  # As above.

    monkeypatch.setattr(Connection, "reply", confuse)


def plant_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Connection.receive_data

    def fragile(self: Connection, data: bytes, now: float) -> list[Event]:
        if len(data) == 5:
            raise IndexError("five bytes")
        return receive(self, data, now)

    monkeypatch.setattr(Connection, "receive_data", fragile)


def plant_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.testing.timeline.ACTIONS_MAX", 5_000)
    monkeypatch.setattr(Connection, "deadline", lambda self: 0.0)


@pytest.mark.parametrize(
    ("plant", "exit_code"),
    [
        (plant_byte_lost_at_split, CorrectnessFailure.exit_code),
        (plant_no_expiry, LivenessFailure.exit_code),
        (plant_early_expiry, CorrectnessFailure.exit_code),
        (plant_endless_patience, LivenessFailure.exit_code),
        (plant_impatience, CorrectnessFailure.exit_code),
        (plant_no_heartbeats, CorrectnessFailure.exit_code),
        (plant_second_answer, CorrectnessFailure.exit_code),
        (plant_wrong_id, CorrectnessFailure.exit_code),
        (plant_exception, CRASH),
        (plant_standstill, LivenessFailure.exit_code),
    ],
)
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, exit_code: int
) -> None:
    plant(monkeypatch)
    found = next((outcome for outcome in map(run, range(PLANTED_SEEDS)) if outcome.exit_code), None)
    assert found is not None, "no seed found it"
    assert found.exit_code == exit_code, found.reason
