"""Everything that chance decides about a run before it starts."""

from __future__ import annotations

import enum
from random import Random

import msgspec

from postroad.core import Limits
from postroad.core.limits import KIB
from postroad.wire import DOCUMENTED, ZEEBE, ConnectionRole, ProtocolProfile

# Work and faults begin within this time, and all faults but the lasting ones end soon after.
ACTIVE_S = 20.0
# By now every fault that can be noticed was noticed, and what is sent must be answered.
HEALED_S = 60.0
END_S = 80.0

PROBE_TIMEOUT_S = 10.0
# Later than any moment given to a timer, as a busy event loop would be.
LATENESS_S_MAX = 0.02


class Cut(enum.Enum):
    WHOLE = "whole"
    PIECES = "pieces"
    CRUMBS = "crumbs"


class Fault(enum.Enum):
    CUT = "cut"
    """It breaks after so many bytes, and both sides are told."""
    HALF_CUT = "half cut"
    """It breaks, and only one side is told."""
    STALL = "stall"
    """For some time nothing passes, in one direction or both."""
    VANISH = "vanish"
    """From now on nothing passes, and nobody is told."""
    PAUSE = "pause"
    """A process stands still."""
    SLOW_READER = "slow reader"
    """A side stops reading for some time, as back-pressure makes it."""
    FLIP = "flip"
    """A bit differs; from then on nothing is certain but that nothing crashes."""


class PlannedFault(msgspec.Struct, frozen=True):
    """One fault. What it does not need is drawn all the same and ignored."""

    kind: Fault
    time: float
    lasting_s: float
    side: ConnectionRole
    is_both_ways: bool
    after_bytes: int


class Kind(enum.Enum):
    """What the server does with a request, told by its subject."""

    ECHO = "echo"
    """Answers after some time."""
    NOW = "now"
    """Answers at once."""
    FAIL = "fail"
    NONE = "no/such/handler"
    NEVER = "never"
    """Takes a request and does not answer it."""
    LOG = "log"
    """One-way."""


class Job(msgspec.Struct, frozen=True):
    time: float
    kind: Kind
    payload: bytes
    timeout_s: float
    service_s: float
    reply_bytes: int
    cancel_after_s: float | None


class Side(msgspec.Struct, frozen=True):
    profile: ProtocolProfile
    limits: Limits
    compressions: tuple[str, ...]
    heartbeat_payload: bool
    has_certificate: bool


class Plan(msgspec.Struct, frozen=True):
    sides: dict[ConnectionRole, Side]
    cut: Cut
    delay_s_max: float
    faults: list[PlannedFault]
    jobs: list[Job]
    goodbye: tuple[ConnectionRole, float] | None
    is_calm: bool
    """Nothing goes wrong, so everything must succeed."""

    @property
    def version(self) -> int:
        offered = self.sides[ConnectionRole.CLIENT].profile.versions[-1]
        known = self.sides[ConnectionRole.SERVER].profile.versions
        return offered if offered in known else known[-1]

    @property
    def name(self) -> str:
        versions = [side.profile.versions[-1] for side in self.sides.values()]
        profile = self.sides[ConnectionRole.CLIENT].profile.name
        faults = ", ".join(sorted({fault.kind.value for fault in self.faults})) or "no fault"
        return f"{profile} {versions[0]} to {versions[1]}, {self.cut.value}, {faults}"


def draw_plan(rng: Random) -> Plan:
    profile = rng.choice((DOCUMENTED, DOCUMENTED, ZEEBE))
    faults = _draw_faults(rng) if rng.random() < 0.75 else []
    goodbye = _draw_goodbye(rng) if rng.random() < 0.3 else None
    is_calm = not faults and goodbye is None
    sides = {role: _draw_side(rng, profile, is_calm=is_calm) for role in ConnectionRole}
    return Plan(
        sides=sides,
        cut=rng.choice(tuple(Cut)),
        delay_s_max=rng.choice((0.0, 0.001, 0.05)),
        faults=faults,
        jobs=_draw_jobs(rng, sides, is_calm=is_calm),
        goodbye=goodbye,
        is_calm=is_calm,
    )


def _draw_side(rng: Random, profile: ProtocolProfile, *, is_calm: bool) -> Side:
    interval_s = rng.choice((0.0, 0.5, 1.0, 2.0))
    limits = Limits(
        frame_bytes_max=rng.choice((1 * KIB, 16 * KIB, 300 * KIB, 1024 * KIB)),
        requests_pending_max=1_000 if is_calm else rng.choice((1, 4, 1_000)),
        handshake_timeout_s=rng.uniform(1.0, 5.0),
        frame_timeout_s=rng.uniform(2.0, 10.0),
        heartbeat_interval_s=interval_s,
        heartbeat_timeout_s=interval_s * rng.uniform(3.0, 4.0),
    )
    return Side(
        profile=profile.up_to(rng.choice(profile.versions + profile.versions[-1:] * 3)),
        limits=limits,
        compressions=rng.choice(((), ("zlib",), ("zstd", "zlib"))),
        heartbeat_payload=rng.random() < 0.7,
        has_certificate=rng.random() < 0.5,
    )


def _draw_faults(rng: Random) -> list[PlannedFault]:
    if rng.random() < 0.15:
        kinds = [Fault.FLIP]
    else:
        usual = [kind for kind in Fault if kind is not Fault.FLIP]
        kinds = rng.choices(usual, k=rng.randint(1, 3))
    return [
        PlannedFault(
            kind=kind,
            time=rng.choice((rng.uniform(0, ACTIVE_S), rng.uniform(0, 0.1))),
            lasting_s=rng.choice((0.1, 1.0, 5.0, 15.0)) * rng.uniform(0.5, 1.0),
            side=rng.choice(tuple(ConnectionRole)),
            is_both_ways=rng.random() < 0.5,
            after_bytes=rng.choice((rng.randrange(300), rng.randrange(20_000))),
        )
        for kind in kinds
    ]


def _draw_goodbye(rng: Random) -> tuple[ConnectionRole, float]:
    return rng.choice(tuple(ConnectionRole)), rng.choice(
        (rng.uniform(0, ACTIVE_S), rng.uniform(0, 0.1))
    )


def _draw_jobs(rng: Random, sides: dict[ConnectionRole, Side], *, is_calm: bool) -> list[Job]:
    kinds = rng.choice((tuple(Kind), (Kind.ECHO, Kind.NOW), (Kind.LOG,), (Kind.NEVER, Kind.LOG)))
    limits = [sides[role].limits.frame_bytes_max for role in ConnectionRole]
    # Versions 1 and 2 do not tell their limits, so a larger message than the peer takes ends the
    # connection, as it should; but not in every run, and not in a calm one.
    largest = max(limits) if rng.random() < 0.15 and not is_calm else min(limits)
    jobs = [
        _draw_job(rng, rng.choice(kinds), largest - KIB // 8) for _ in range(rng.randint(5, 60))
    ]
    return sorted(jobs, key=lambda job: job.time)


def _draw_job(rng: Random, kind: Kind, bytes_max: int) -> Job:
    sizes = (0, 3, 100, 600, 5_000, 70_000, 290_000, bytes_max)
    service_s = rng.choice((0.0, 0.01, 0.5)) * rng.random()
    return Job(
        time=rng.uniform(0, ACTIVE_S),
        kind=kind,
        payload=_draw_payload(rng, min(rng.choice(sizes), bytes_max)),
        timeout_s=rng.uniform(2.0, 10.0),
        service_s=service_s,
        reply_bytes=min(rng.choice(sizes), bytes_max),
        cancel_after_s=rng.uniform(0, 0.5) if rng.random() < 0.1 else None,
    )


def _draw_payload(rng: Random, size: int) -> bytes:
    return (
        rng.randbytes(size) if rng.random() < 0.5 else (rng.randbytes(16) * (size // 16 + 1))[:size]
    )
