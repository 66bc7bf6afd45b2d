"""What is known of a flow besides its steps."""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET, UnsetType

from postroad.flows.machine.status import TERMINAL_STATUSES, FlowStatus
from postroad.flows.machine.values import RecordedError
from postroad.flows.sessions.messages import SessionKey


class InitiatingSession(msgspec.Struct, frozen=True, array_like=True):
    """The session that a flow responds to."""

    peer: str
    key: SessionKey
    flow: str
    version: int
    app: str


class ForkOrigin(msgspec.Struct, frozen=True, array_like=True):
    """Where a flow that was not started by its code's caller comes from."""

    flow: int
    step: int
    """The first of its own."""
    at_ms: int


class FlowFailure(msgspec.Struct, frozen=True, array_like=True):
    """Why a flow failed, waits for an operator, or is retried."""

    error_id: str
    """The same here and at everybody who was told."""
    error: RecordedError
    at_ms: int
    detail: str
    """Where it happened, for people."""


_STORED_NAMES = {
    "seed": "entropy",
    "fork_seeds": "own_entropy",
    "initiated_by": "origin",
    "run_number": "run",
    "run_started_ms": "run_ms",
    "sessions_opened": "opened",
    "crash_recoveries": "recoveries",
    "crashes_alone": "strikes",
    "failure": "trouble",
    "forked_from": "forked",
}
"""Names of the fields as they are stored."""


class FlowState(msgspec.Struct, kw_only=True, rename=_STORED_NAMES):
    """All of a flow but its steps and the messages it has not read."""

    id: int
    name: str
    version: int
    status: FlowStatus
    seed: bytes
    """What its random numbers come from."""
    started_ms: int
    arguments: bytes = b""
    client_id: str | None = None
    initiated_by: InitiatingSession | None = None
    run_number: int = 1
    """How often it started anew."""
    run_started_ms: int = 0
    """When it last did."""
    is_confirmed: bool = False
    """Whether the other end knows that this flow responds to it."""
    sessions_opened: int = 0
    """Sessions that earlier runs have opened."""
    deadline_ms: int | None = None
    wake_ms: int | None = None
    """When it must be looked at: 0 for at once, None if only a message can change anything."""
    attempts: int = 0
    """How often its last step has been tried in vain."""
    crash_recoveries: int = 0
    """How often the process ended since it last came any further."""
    is_suspect: bool = False
    """Whether it may be what ended the process, and is tried apart from others."""
    trials: int = 0
    """How often it was, since it last came any further."""
    crashes_alone: int = 0
    """How often the process ended during that, with no other suspect running."""
    failure: FlowFailure | None = None
    result: bytes | None = None
    progress: str | None = None
    ended_ms: int | None = None
    trace: dict[str, str] | UnsetType = UNSET
    """The span of its start, as headers tell it; not there if nobody traced that."""
    forked_from: ForkOrigin | UnsetType = UNSET
    """The flow it was forked from. It started when that one did, as far as its code can tell."""
    fork_seeds: list[tuple[int, bytes]] | UnsetType = UNSET
    """What its random numbers come from instead, from so many steps on: since it was forked."""

    @property
    def is_ended(self) -> bool:
        return self.status in TERMINAL_STATUSES

    @property
    def seeds(self) -> list[tuple[int, bytes]]:
        """What its random numbers come from, and from how many steps on."""
        return [(0, self.seed), *(self.fork_seeds or ())]

    def add_fork_seed(self, step: int, seed: bytes) -> None:
        """Have it draw other values than the flow it is a copy of, from a step on."""
        earlier_seeds = [seed for seed in self.fork_seeds or () if seed[0] < step]
        self.fork_seeds = [*earlier_seeds, (step, seed)]

    def start_next_run(self, arguments: bytes, now_ms: int) -> None:
        """Start its next run."""
        self.arguments = arguments
        self.run_number += 1
        self.run_started_ms = now_ms
        _, self.seed = self.seeds[-1]
        self.fork_seeds = UNSET

    def reset_attempts(self) -> None:
        """Nothing that went wrong before counts any more."""
        self.attempts = self.crash_recoveries = self.trials = self.crashes_alone = 0
        self.is_suspect = False

    def clear_suspicion(self) -> None:
        """It has not ended the process."""
        self.crash_recoveries = self.trials = self.crashes_alone = 0
        self.is_suspect = False


_ID = re.compile("[0-7][0-9a-f]{15}")


def format_flow_id(id: int) -> str:
    """A flow's id as people see it."""
    return f"{id:016x}"


def is_flow_id(text: str) -> bool:
    """Whether a flow may be called that."""
    return _ID.fullmatch(text) is not None


def parse_flow_id(text: str) -> int:
    """The id that people see as that; raises ValueError if it is none."""
    if not is_flow_id(text):
        raise ValueError(f"{text!r} is no id of a flow")
    return int(text, 16)
