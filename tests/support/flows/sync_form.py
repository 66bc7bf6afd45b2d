"""Code of flows written as coroutines, run on the stacks of greenlets as plain functions are."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from postroad.flows import FlowDefinition
from postroad.flows.greenlets import GreenletCoroutine, wait_for


class OnStack(GreenletCoroutine[Any]):
    """A coroutine that is waited for from a stack of its own."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        super().__init__(partial(wait_for, coroutine))
        self._coroutine = coroutine

    def close(self) -> None:
        super().close()
        # One that never began.
        self._coroutine.close()


@contextmanager
def on_stacks() -> Iterator[None]:
    """Run the code of all flows as if it were that of plain functions."""

    def start(definition: FlowDefinition[Any, Any], *args: Any, **kwargs: Any) -> Any:
        code = definition._start(*args, **kwargs)
        return code if isinstance(code, GreenletCoroutine) else OnStack(code)

    with patch.object(FlowDefinition, "__call__", start):
        yield
