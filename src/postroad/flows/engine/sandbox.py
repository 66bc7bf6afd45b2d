"""Runs the code of flows apart from the event loop that drives it.

Code of a flow runs in the midst of some task of this package: that of a step, of a letter, of
whoever began the flow. It must not get hold of that task, nor leave anything to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator
from contextvars import Context
from typing import Any

from postroad.flows.engine.background import now_ms
from postroad.flows.machine.events import FlowEvent, FlowTransition
from postroad.flows.machine.state import format_flow_id
from postroad.flows.machine.state_machine import FlowStateMachine

logger = logging.getLogger("postroad.flows")

# Code that runs longer than this at a time is complained about.
_SLOW_S = 1.0


def run_sandboxed(machine: FlowStateMachine, event: FlowEvent, context: Context) -> FlowTransition:
    """Have a machine take up an event, and its code run in a copy of a context.

    `asyncio.timeout` and task groups, which would cancel the task they are used in, find none. And
    async generators that are given up are closed then and there: the event loop would do it some
    time later, which is not the same whenever the code is run.
    """
    task = asyncio.current_task()
    hooks = sys.get_asyncgen_hooks()
    # Not the time on the wall: others may have had the processor meanwhile.
    began = time.thread_time()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=_close)
    if task is not None:
        asyncio.tasks._leave_task(task.get_loop(), task)
    try:
        transition = context.copy().run(machine.handle, event, now_ms())
    finally:
        if task is not None:
            asyncio.tasks._enter_task(task.get_loop(), task)
        sys.set_asyncgen_hooks(*hooks)
    if time.thread_time() - began > _SLOW_S:
        logger.warning(
            "flow %s of %s kept this node waiting for more than %g s: do what takes long inside "
            "ctx.step",
            format_flow_id(machine.state.id), machine.state.name, _SLOW_S,
        )  # fmt: skip
    return transition


def _close(generator: AsyncGenerator[Any, Any]) -> None:
    closing = generator.aclose()
    try:
        closing.send(None)
    except BaseException as error:
        # It has ended, or was in the midst of something: nobody is there to care.
        del error
    else:
        # It wants to wait for something, which code that is given up cannot.
        closing.close()
