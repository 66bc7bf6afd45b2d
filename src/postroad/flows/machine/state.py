"""The state of a flow besides its history."""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET, UnsetType

from postroad.flows.machine.attributes import AttributeValue
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
    """Origin of a forked flow."""

    flow: int
    step: int
    """The first step that is not copied from that flow."""
    at_ms: int


class FlowFailure(msgspec.Struct, frozen=True, array_like=True):
    """Why a flow failed, waits for an operator, or is retried."""

    error_id: str
    """The same on all nodes that the error was sent to."""
    error: RecordedError
    at_ms: int
    detail: str
    """The traceback or a description, for operators."""


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
    """A flow without its history and the messages that it has not consumed."""

    id: int
    name: str
    version: int
    status: FlowStatus
    seed: bytes
    """Seed of its random numbers."""
    started_ms: int
    arguments: bytes = b""
    client_id: str | None = None
    initiated_by: InitiatingSession | None = None
    run_number: int = 1
    """The number of its run; `continue_as_new` starts the next one."""
    run_started_ms: int = 0
    """When this run started."""
    is_confirmed: bool = False
    """Whether the other end knows that this flow responds to it."""
    sessions_opened: int = 0
    """Sessions that earlier runs have opened."""
    deadline_ms: int | None = None
    wake_ms: int | None = None
    """When it is due: 0 for at once, None if only a message or signal can wake it."""
    attempts: int = 0
    """Failed attempts since the flow last made progress."""
    crash_recoveries: int = 0
    """Crashes of the process since the flow last made progress."""
    is_suspect: bool = False
    """Whether it may have caused the crashes, and is tried apart from others."""
    trials: int = 0
    """Trials since the flow last made progress."""
    crashes_alone: int = 0
    """Crashes during trials in which no other suspect ran."""
    failure: FlowFailure | None = None
    result: bytes | None = None
    progress: str | None = None
    attributes: dict[str, AttributeValue] | UnsetType = UNSET
    """Its search attributes, if it has any; never changed in place."""
    run_attributes: dict[str, AttributeValue] | UnsetType = UNSET
    """Those that its run started with."""
    ended_ms: int | None = None
    trace: dict[str, str] | UnsetType = UNSET
    """The span of its start, as headers; unset if the start was not traced."""
    forked_from: ForkOrigin | UnsetType = UNSET
    """The flow it was forked from, whose start time it has."""
    parent: str | UnsetType = UNSET
    """The id of the flow that started it as its child."""
    fork_seeds: list[tuple[int, bytes]] | UnsetType = UNSET
    """Seeds of its random numbers since it was forked, each with its first step."""

    @property
    def is_ended(self) -> bool:
        return self.status in TERMINAL_STATUSES

    @property
    def seeds(self) -> list[tuple[int, bytes]]:
        """Seeds of its random numbers, each with its first step."""
        return [(0, self.seed), *(self.fork_seeds or ())]

    def add_fork_seed(self, step: int, seed: bytes) -> None:
        """Use another seed than the flow it was forked from, from a step on."""
        earlier_seeds = [seed for seed in self.fork_seeds or () if seed[0] < step]
        self.fork_seeds = [*earlier_seeds, (step, seed)]

    def start_next_run(self, arguments: bytes, now_ms: int) -> None:
        """Start its next run."""
        self.arguments = arguments
        self.run_number += 1
        self.run_started_ms = now_ms
        self.run_attributes = self.attributes
        _, self.seed = self.seeds[-1]
        self.fork_seeds = UNSET

    def reset_attempts(self) -> None:
        """Reset all counts of failures: the flow has made progress."""
        self.attempts = self.crash_recoveries = self.trials = self.crashes_alone = 0
        self.is_suspect = False

    def clear_suspicion(self) -> None:
        """Reset the counts of crashes: the flow did not cause them."""
        self.crash_recoveries = self.trials = self.crashes_alone = 0
        self.is_suspect = False


_ID = re.compile("[0-7][0-9a-f]{15}")


def format_flow_id(id: int) -> str:
    """Format the id of a flow, as it is shown."""
    return f"{id:016x}"


def is_flow_id(text: str) -> bool:
    """Whether a text is an id of a flow."""
    return _ID.fullmatch(text) is not None


def parse_flow_id(text: str) -> int:
    """Parse the id of a flow; raises ValueError if it is none."""
    if not is_flow_id(text):
        raise ValueError(f"{text!r} is no id of a flow")
    return int(text, 16)
