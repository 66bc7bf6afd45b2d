"""Puts the machine of a flow together with the code that a node has for it."""

from __future__ import annotations

import random
from typing import Any

from .code import Code
from .config import FlowsConfig
from .definition import Definition, Registry
from .errors import FlowMismatch
from .handle import Flow, Session
from .head import Head
from .lifecycle import Bounds
from .machine import Machine
from .resident import Resident


class Assembly:
    """Makes machines.

    Args:
        registry: the code a node has.
        config: sizes and times.
        payload_max: size of the largest thing a flow may send.
    """

    def __init__(self, registry: Registry, config: FlowsConfig, payload_max: int) -> None:
        self._registry = registry
        self._config = config
        self._payload_max = payload_max
        self._bounds = Bounds(
            attempts=config.attempts_max,
            pause_ms=self._pause_ms,
            steps=config.history_steps_max,
            bytes=config.history_bytes_max,
        )

    def definition_of(self, head: Head) -> Definition[Any, Any] | None:
        """The code of a flow."""
        if head.origin is not None:
            return self._registry.responder(head.origin.flow)
        return self._registry.find(head.name)

    def make_machine(self, resident: Resident, head: Head, **known: Any) -> Machine:
        """The machine of a flow, with what is known of it besides its head."""
        definition = self.definition_of(head)
        machine = Machine(
            head,
            lambda machine: self._make_code(resident, machine),
            heard_max=self._config.heard_max,
            payload_max=self._payload_max,
            app="" if definition is None else definition.app,
            **known,
        )
        machine.bounds = self._bounds
        machine.dialogues.signals_max = self._config.signals_max
        machine.dialogues.signals_bytes_max = self._config.signals_bytes_max
        return machine

    def _pause_ms(self, attempts: int) -> int:
        return round(self._config.retry.pause_s(attempts, random.random()) * 1000)

    def _make_code(self, resident: Resident, machine: Machine) -> Code:
        head = machine.head
        definition = self.definition_of(head)
        if definition is None:
            raise FlowMismatch(f"no flow {head.name!r} is known at this node any more")
        flow = resident.flow = Flow(machine, definition)
        if head.origin is not None:
            head.name, head.version = definition.name, definition.version
            coroutine = definition.function(flow, Session(flow, machine.dialogues.sessions[0]))
        else:
            args, kwargs = definition.decode_arguments(head.arguments)
            coroutine = definition.function(flow, *args, **kwargs)
        return Code(coroutine, definition, machine.answer, machine.withdraw)
