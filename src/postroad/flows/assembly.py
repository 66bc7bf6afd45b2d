"""Puts the machine of a flow together with the code that a node has for it."""

from __future__ import annotations

import random
from typing import Any

from .code import FlowCoroutine
from .config import FlowsConfig
from .definition import FlowDefinition, FlowRegistry
from .errors import NondeterminismError
from .handle import FlowContext, FlowSession
from .head import FlowState
from .lifecycle import FlowLimits
from .machine import FlowStateMachine
from .resident import LoadedFlow


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
        self, loaded: LoadedFlow, state: FlowState, **known: Any
    ) -> FlowStateMachine:
        """The machine of a flow, with what is known of it besides its head."""
        definition = self.definition_of(state)
        machine = FlowStateMachine(
            state,
            lambda machine: self._create_coroutine(loaded, machine),
            buffer_max=self._config.heard_max,
            payload_max=self._payload_max,
            app="" if definition is None else definition.app,
            **known,
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
