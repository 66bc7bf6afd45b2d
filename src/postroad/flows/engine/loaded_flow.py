"""A flow in memory, and the factory of its state machine."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from postroad.flows.engine.mutations import FlowCommitSequence
from postroad.flows.machine.commands import FlowCommand
from postroad.flows.machine.events import FlowEvent
from postroad.flows.machine.status import FlowStatus

if TYPE_CHECKING:
    from postroad.durable.store import Store
    from postroad.flows.context import FlowContext
    from postroad.flows.engine.mutations import FlowMutation
    from postroad.flows.engine.step_functions import StepTransaction
    from postroad.flows.machine.state_machine import FlowStateMachine


import random
from typing import Any

from postroad.flows.config import FlowsConfig
from postroad.flows.context import FlowContext, FlowSession
from postroad.flows.definition import FlowDefinition, FlowRegistry
from postroad.flows.errors import NondeterminismError
from postroad.flows.machine.coroutine import FlowCoroutine
from postroad.flows.machine.lifecycle import FlowLimits
from postroad.flows.machine.state import FlowState
from postroad.flows.machine.state_machine import FlowStateMachine

_POLL_INTERVAL_S = 0.001

QueuedEvent = tuple[FlowEvent, asyncio.Future[None] | None]
"""An event, with whoever wants to know when what follows from it is durable."""


class LoadedFlow:
    """What a node has of a flow besides what is in the store.

    Attributes:
        machine: None while it is read.
        flow: what its code works with.
        lane: broken when something could not be committed.
        pending: commits that are under way.
        newest: the last of them.
        wishes: events that wait until it was read.
        pins: how many need it to stay in memory.
        timer: for the time it must be looked at.
        step_txs: those of steps.
        held: commits that wait for one of them, which would come before them otherwise.
        is_counted: whether it is one of those that may run at the same time.
        was_counted: the same of what is in the store.
    """

    __slots__ = (
        "ctx",
        "held_mutations",
        "id",
        "is_counted",
        "last_mutation",
        "machine",
        "pending",
        "pins",
        "queued_events",
        "read_done",
        "sequence",
        "step_transactions",
        "timer",
        "was_counted",
    )

    def __init__(self, id: int) -> None:
        self.id = id
        self.machine: FlowStateMachine | None = None
        # Resolved when it was read, or could not be.
        self.read_done: asyncio.Future[None] | None = None
        self.ctx: FlowContext | None = None
        self.sequence = FlowCommitSequence()
        self.pending = 0
        self.last_mutation: FlowMutation | None = None
        self.queued_events: deque[QueuedEvent] = deque()
        self.pins = 0
        self.timer: asyncio.TimerHandle | None = None
        self.step_transactions: list[StepTransaction] = []
        self.held_mutations: list[FlowMutation] = []
        self.is_counted = False
        self.was_counted = False

    @property
    def is_idle(self) -> bool:
        """Whether it may leave the memory."""
        is_busy = self.pending or self.queued_events or self.pins
        return not is_busy and self.machine is not None and not self.machine.has_deferred

    @property
    def is_healthy(self) -> bool:
        """Whether it was read, and nothing of it is lost or put away."""
        machine = self.machine
        return machine is not None and not machine.is_unloaded and not self.sequence.is_broken

    @property
    def is_stopped(self) -> bool:
        """Whether it was read, and does not run; all of that is durable."""
        machine = self.machine
        is_durable = not self.pending and not self.sequence.is_broken
        return is_durable and machine is not None and machine.state.status is not FlowStatus.RUNNING

    def take_queued_events(self) -> list[QueuedEvent]:
        """The events that wait, in order."""
        queued = list(self.queued_events)
        self.queued_events.clear()
        return queued

    def take_held_mutations(self) -> list[FlowMutation]:
        """The commits that were held, in order."""
        held, self.held_mutations = self.held_mutations, []
        return held

    def submit_held(self, store: Store) -> None:
        """Submit what was held, unless the transaction of a step comes before it."""
        if self.step_transactions and any(
            tx.is_started and not tx.is_lost for tx in self.step_transactions
        ):
            return
        for mutation in self.take_held_mutations():
            store.submit(mutation)

    def still_awaited(self, commands: list[FlowCommand]) -> list[FlowCommand]:
        """Those of them that the code waits for now."""
        machine = self.machine
        return (
            [] if machine is None else [command for command in commands if machine.awaits(command)]
        )

    async def wait_loaded(self) -> None:
        """Wait until it was read, or will not be."""
        if self.machine is None:
            if self.read_done is None:
                self.read_done = asyncio.get_running_loop().create_future()
            await asyncio.shield(self.read_done)

    async def pin(self) -> None:
        """Stay in memory, and wait until it was read, or will not be read."""
        self.pins += 1
        try:
            await self.wait_loaded()
        except asyncio.CancelledError:
            self.pins -= 1
            raise

    async def is_durable(self) -> bool:
        """Wait for what it did so far to be durable; whether it is, or was undone."""
        newest = self.last_mutation
        while newest is not None and not newest.is_finished:  # noqa: ASYNC110  # It is a moment.
            await asyncio.sleep(_POLL_INTERVAL_S)
        return not self.sequence.is_broken

    def on_loaded(self) -> None:
        """It was read, or will not be."""
        if self.read_done is not None and not self.read_done.done():
            self.read_done.set_result(None)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def __repr__(self) -> str:
        what = "being read" if self.machine is None else self.machine.state.status
        return f"<Resident {self.id:x} {what}, {self.pending} commits under way>"


def consume_exception(done: asyncio.Future[None]) -> None:
    """Look at what came of something, which whoever asked may have given up to wait for."""
    if not done.cancelled():
        done.exception()


def resolve_future(done: asyncio.Future[None] | None) -> None:
    """Tell whoever waits, if somebody does, that it is durable."""
    if done is not None and not done.done():
        done.set_result(None)


def fail_future(done: asyncio.Future[None] | None, error: Exception) -> None:
    """Tell whoever waits, if somebody does, that it was not done."""
    if done is not None and not done.done():
        done.set_exception(error)


class MachineFactory:
    """Makes machines.

    Args:
        registry: the code a node has.
        config: sizes and times.
        payload_max: size of the largest thing a flow may send.
    """

    def __init__(self, registry: FlowRegistry, config: FlowsConfig, payload_max: int) -> None:
        self._registry = registry
        self._config = config
        self._payload_max = payload_max
        self._bounds = FlowLimits(
            max_attempts=config.attempts_max,
            retry_delay_ms=self._retry_delay_ms,
            max_steps=config.history_steps_max,
            max_bytes=config.history_bytes_max,
        )

    def definition_of(self, state: FlowState) -> FlowDefinition[Any, Any] | None:
        """The code of a flow."""
        if state.initiated_by is not None:
            return self._registry.find_responder(state.initiated_by.flow)
        return self._registry.find(state.name)

    def create_machine(
        self, loaded: LoadedFlow, state: FlowState, **history: Any
    ) -> FlowStateMachine:
        """The machine of a flow, with what is known of it besides its head."""
        definition = self.definition_of(state)
        machine = FlowStateMachine(
            state,
            lambda machine: self._create_coroutine(loaded, machine),
            buffer_max=self._config.heard_max,
            payload_max=self._payload_max,
            app="" if definition is None else definition.app,
            **history,
        )
        machine.limits = self._bounds
        machine.sessions.signals_max = self._config.signals_max
        machine.sessions.signals_bytes_max = self._config.signals_bytes_max
        return machine

    def _retry_delay_ms(self, attempts: int) -> int:
        return round(self._config.retry.delay_s(attempts, random.random()) * 1000)

    def _create_coroutine(self, loaded: LoadedFlow, machine: FlowStateMachine) -> FlowCoroutine:
        state = machine.state
        definition = self.definition_of(state)
        if definition is None:
            raise NondeterminismError(f"no flow {state.name!r} is known at this node any more")
        flow = loaded.ctx = FlowContext(machine, definition)
        if state.initiated_by is not None:
            state.name, state.version = definition.name, definition.version
            coroutine = definition(flow, FlowSession(flow, machine.sessions.by_number[0]))
        else:
            args, kwargs = definition.decode_arguments(state.arguments)
            coroutine = definition(flow, *args, **kwargs)
        return FlowCoroutine(coroutine, definition, machine.execute, machine.cancel_command)
