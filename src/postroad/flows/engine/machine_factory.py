"""Creates the state machines of flows, and runs flow code apart from the event loop."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from collections.abc import AsyncGenerator
from contextvars import Context
from typing import TYPE_CHECKING, Any

from postroad.flows.config import FlowsConfig
from postroad.flows.context import FlowContext, FlowSession
from postroad.flows.definition import FlowDefinition, FlowRegistry
from postroad.flows.engine.background import now_ms
from postroad.flows.errors import NondeterminismError
from postroad.flows.machine.coroutine import FlowCoroutine
from postroad.flows.machine.events import FlowEvent, FlowTransition
from postroad.flows.machine.lifecycle import FlowLimits
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.machine.state_machine import FlowStateMachine

if TYPE_CHECKING:
    from postroad.flows.engine.loaded_flow import LoadedFlow

logger = logging.getLogger("postroad.flows")

# CPU time of one event after which flow code is reported as slow.
_SLOW_S = 1.0


class MachineFactory:
    """Creates the state machines of flows.

    Args:
        registry: the flows that this node has code for.
        config: limits and times.
        payload_max: size of the largest value that a flow can send.
    """

    def __init__(self, registry: FlowRegistry, config: FlowsConfig, payload_max: int) -> None:
        self._registry = registry
        self._config = config
        self._payload_max = payload_max
        self._limits = FlowLimits(
            max_attempts=config.max_attempts,
            retry_delay_ms=self._retry_delay_ms,
            max_steps=config.history_steps_max,
            max_bytes=config.history_bytes_max,
        )

    def definition_of(self, state: FlowState) -> FlowDefinition[Any, Any] | None:
        """Return the definition of a flow, or None if this node has no code for it."""
        if state.initiated_by is not None:
            return self._registry.find_responder(state.initiated_by.flow)
        return self._registry.find(state.name)

    def create_machine(
        self, loaded: LoadedFlow, state: FlowState, **history: Any
    ) -> FlowStateMachine:
        """Create the state machine of a flow.

        Args:
            loaded: gets the context of the code when that starts.
            state: as it is stored.
            history: `entries`, `buffered` and `signals` of a flow that has run before.
        """
        definition = self.definition_of(state)
        machine = FlowStateMachine(
            state,
            lambda machine: self._create_coroutine(loaded, machine),
            buffer_max=self._config.session_buffer_max,
            payload_max=self._payload_max,
            app="" if definition is None else definition.app,
            **history,
        )
        machine.limits = self._limits
        machine.sessions.signal_buffer_max = self._config.signal_buffer_max
        machine.sessions.signal_buffer_bytes_max = self._config.signal_buffer_bytes_max
        return machine

    def _retry_delay_ms(self, attempts: int) -> int:
        return round(self._config.retry.delay_s(attempts, random.random()) * 1000)

    def _create_coroutine(self, loaded: LoadedFlow, machine: FlowStateMachine) -> FlowCoroutine:
        state = machine.state
        definition = self.definition_of(state)
        if definition is None:
            raise NondeterminismError(
                f"this node has no flow called {state.name!r}: run code that has it, or kill flow "
                f"{format_flow_id(state.id)}"
            )
        ctx = loaded.ctx = FlowContext(machine, definition)
        if state.initiated_by is not None:
            state.name, state.version = definition.name, definition.version
            coroutine = definition(ctx, FlowSession(ctx, machine.sessions.by_number[0]))
        else:
            args, kwargs = definition.decode_arguments(state.arguments)
            coroutine = definition(ctx, *args, **kwargs)
        return FlowCoroutine(coroutine, definition, machine.execute, machine.cancel_command)


def run_sandboxed(machine: FlowStateMachine, event: FlowEvent, context: Context) -> FlowTransition:
    """Make a state machine handle an event, with its code in a copy of a context.

    Flow code runs synchronously inside whichever task dispatched the event, and must affect neither
    that task nor the event loop. There is no current task, so that `asyncio.timeout` and task
    groups cannot cancel it. Async generators are closed as soon as they are dropped: the event loop
    would close them later, at another point of each replay.
    """
    task = asyncio.current_task()
    hooks = sys.get_asyncgen_hooks()
    # CPU time: other processes may have used the processor meanwhile.
    started_s = time.thread_time()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=_close_generator)
    if task is not None:
        asyncio.tasks._leave_task(task.get_loop(), task)
    try:
        transition = context.copy().run(machine.handle, event, now_ms())
    finally:
        if task is not None:
            asyncio.tasks._enter_task(task.get_loop(), task)
        sys.set_asyncgen_hooks(*hooks)
    if time.thread_time() - started_s > _SLOW_S:
        logger.warning(
            "flow %s of %s blocked the event loop for more than %g s: do slow work inside ctx.step",
            format_flow_id(machine.state.id), machine.state.name, _SLOW_S,
        )  # fmt: skip
    return transition


def _close_generator(generator: AsyncGenerator[Any, Any]) -> None:
    closing = generator.aclose()
    try:
        closing.send(None)
    except BaseException as error:
        # It has ended, or raised while it was closed: there is no caller left.
        del error
    else:
        # It awaits something, which a closed generator cannot.
        closing.close()
