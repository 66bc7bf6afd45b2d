"""Results of operations as text or JSON; some are better told in a way of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from postroad.admin.operations import Operation

from .drawing import draw_text
from .screen import visible
from .tables import render
from .trace_tree import draw_trace

_OWN: dict[str, Callable[[Any], str]] = {
    "cluster.map": draw_text,
    "job.explain": lambda graph: str(graph["mermaid"]),
    "service.call": lambda call: _tell(call["result"]),
    "flow.query": lambda answer: _tell(answer["value"]),
    "trace.show": draw_trace,
}


def render_result(operation: Operation, result: Any) -> str:
    """What an operation returned, for people."""
    own = _OWN.get(operation.name)
    return render(operation.result, result) if own is None else own(result)


def _tell(value: Any) -> str:
    return visible(value) if isinstance(value, str) else format_json(value)


def format_json(value: Any) -> str:
    """JSON that people can read too."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def print_json(value: Any) -> None:
    """Show a value to programs."""
    click.echo(format_json(value))
