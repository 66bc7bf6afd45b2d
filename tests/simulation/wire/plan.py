"""Everything random about a run, drawn before it starts."""

from __future__ import annotations

import enum
from random import Random

import msgspec

from postroad.core import Limits
from postroad.core.limits import KIB
from postroad.net import ProtocolConfig
from postroad.wire import DOCUMENTED, ZEEBE, ConnectionRole, ProtocolProfile

# Work and faults start within this time, and all faults but the lasting ones end soon after.
ACTIVE_S = 20.0
# Every detectable fault is detected by now, and every later request gets its reply.
HEALED_S = 60.0

PROBE_TIMEOUT_S = 10.0
STOP_GRACE_S = 3.0
HANDLER_TIMEOUT_S = 20.0
# The handler of a request that the network delayed may run until its timeout.
END_S = HEALED_S + HANDLER_TIMEOUT_S + 5.0


class Fault(enum.Enum):
    RESET = "reset"
    """The connections break, and both sides notice."""
    POWER = "power"
    """The host of the server is off for some time; the client does not notice at once."""
    STOP = "stop"
    """A side stops gracefully and starts again."""
    STALL = "stall"
    """Nothing passes for some time, in one direction or both."""
    VANISH = "vanish"
    """Nothing passes any more, and neither side is notified."""
    PAUSE = "pause"
    """A process is paused."""
    SLOW_READER = "slow reader"
    """A host reads slowly for some time."""
    FLIP = "flip"
    """A bit differs; after that, only a crash is a failure."""


class PlannedFault(msgspec.Struct, frozen=True):
    """One fault; fields that its kind does not need are ignored."""

    kind: Fault
    time: float
    lasting_s: float
    side: ConnectionRole
    is_both_ways: bool
    bytes_per_s: float


class Kind(enum.Enum):
    """How the server handles a request; the value is the subject."""

    ECHO = "echo"
    """Replies after some time."""
    NOW = "now"
    """Replies at once."""
    FAIL = "fail"
    NONE = "no/such/handler"
    NEVER = "never"
    """Accepts a request and does not reply."""
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
    waits_for_connection: bool


class Side(msgspec.Struct, frozen=True):
    protocol: ProtocolConfig
    limits: Limits


class Plan(msgspec.Struct, frozen=True):
    sides: dict[ConnectionRole, Side]
    delay_s_max: float
    faults: list[PlannedFault]
    jobs: list[Job]
    is_calm: bool
    """There are no faults, so everything must succeed."""

    @property
    def version(self) -> int:
        """The version that the sides must negotiate."""
        return min(side.protocol.version_max or 0 for side in self.sides.values())

    @property
    def name(self) -> str:
        protocols = [side.protocol for side in self.sides.values()]
        versions = " to ".join(str(protocol.version_max) for protocol in protocols)
        faults = ", ".join(sorted({fault.kind.value for fault in self.faults})) or "no fault"
        return f"{protocols[0].profile} {versions}, {faults}"


def draw_plan(rng: Random) -> Plan:
    profile = rng.choice((DOCUMENTED, DOCUMENTED, ZEEBE))
    is_calm = rng.random() < 0.25
    sides = {role: _draw_side(rng, profile, is_calm=is_calm) for role in ConnectionRole}
    jobs = _draw_jobs(rng, sides, is_calm=is_calm)
    return Plan(
        sides=sides,
        delay_s_max=rng.choice((0.0, 0.001, 0.05)),
        faults=[] if is_calm else _draw_faults(rng, jobs),
        jobs=jobs,
        is_calm=is_calm,
    )


def _draw_side(rng: Random, profile: ProtocolProfile, *, is_calm: bool) -> Side:
    interval_s = rng.choice((0.0, 0.5, 1.0, 2.0))
    limits = Limits(
        frame_bytes_max=rng.choice((1 * KIB, 16 * KIB, 300 * KIB, 1024 * KIB)),
        requests_pending_max=1_000 if is_calm else rng.choice((1, 4, 1_000)),
        handlers_running_max=256 if is_calm else rng.choice((1, 8, 256)),
        handshake_timeout_s=rng.uniform(1.0, 5.0),
        frame_timeout_s=rng.uniform(2.0, 10.0),
        heartbeat_interval_s=interval_s,
        heartbeat_timeout_s=interval_s * rng.uniform(3.0, 4.0),
        idle_timeout_s=rng.choice((1.0, 300.0, 300.0)),
        handler_timeout_s=HANDLER_TIMEOUT_S,
        stop_grace_s=STOP_GRACE_S,
    )
    protocol = ProtocolConfig(
        profile=profile.name,
        version_max=rng.choice(profile.versions + profile.versions[-1:] * 3),
        compressions=rng.choice(((), ("zlib",), ("zstd", "zlib"))),
        heartbeat_payload=rng.random() < 0.7,
    )
    return Side(protocol, limits)


def _draw_faults(rng: Random, jobs: list[Job]) -> list[PlannedFault]:
    if rng.random() < 0.15:
        kinds = [Fault.FLIP]
    else:
        usual = [kind for kind in Fault if kind is not Fault.FLIP]
        kinds = rng.choices(usual, k=rng.randint(1, 3))
    return [
        PlannedFault(
            kind=kind,
            time=rng.choice(
                (rng.uniform(0, ACTIVE_S), rng.choice(jobs).time + rng.uniform(0, 0.1))
            ),
            lasting_s=rng.choice((0.1, 1.0, 5.0, 15.0)) * rng.uniform(0.5, 1.0),
            side=rng.choice(tuple(ConnectionRole)),
            is_both_ways=rng.random() < 0.5,
            bytes_per_s=10 ** rng.uniform(2, 5),
        )
        for kind in kinds
    ]


def _draw_jobs(rng: Random, sides: dict[ConnectionRole, Side], *, is_calm: bool) -> list[Job]:
    kinds = rng.choice((tuple(Kind), (Kind.ECHO, Kind.NOW), (Kind.LOG,), (Kind.NEVER, Kind.LOG)))
    limits = [sides[role].limits.frame_bytes_max for role in ConnectionRole]
    # Versions 1 and 2 do not send their limits, so a message larger than the peer accepts closes
    # the connection; that must not happen in every run, and never in a calm one.
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
        waits_for_connection=rng.random() < 0.5,
    )


def _draw_payload(rng: Random, size: int) -> bytes:
    return (
        rng.randbytes(size) if rng.random() < 0.5 else (rng.randbytes(16) * (size // 16 + 1))[:size]
    )
