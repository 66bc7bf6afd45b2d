"""`postroad completion`: what makes a shell complete words, and the live names it completes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from .helping import Command, argument

_BUDGET_S = 0.3
_VARIABLE = "_POSTROAD_COMPLETE"

Complete = Callable[[click.Context, click.Parameter, str], list[Any]]

LIVE: dict[str, tuple[str, str]] = {
    "action": ("service.actions", "name"),
    "cell": ("cells.ps", "name"),
    "cluster.member": ("cluster.ls", "name"),
    "dlq.id": ("dlq.ls", "id"),
    "dlq.ids": ("dlq.ls", "id"),
    "domain": ("cells.domains", "name"),
    "event": ("service.events", "name"),
    "flow": ("flow.definitions", "name"),
    "flow.id": ("flow.ls", "id"),
    "flow.name": ("flow.schedules", "name"),
    "job": ("job.ls", "name"),
    "node_id": ("cluster.ls", "name"),
    "place_node": ("cluster.ls", "name"),
    "peer": ("bridge.ls", "peer"),
    "queue": ("queue.ls", "name"),
    "service": ("service.ls", "name"),
    "to": ("queue.ls", "name"),
    "trace.id": ("trace.ls", "id"),
}
"""Which operation lists what a parameter may be, and the field of its rows; some for one noun."""


@click.command(cls=Command)
@argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="The shell that you type in.")
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    Commands and options are completed, and names of queues, actions, flows and nodes, as long as
    a node answers at once.

    \b
    Example:
      postroad completion bash >> ~/.bashrc
      postroad completion fish > ~/.config/fish/completions/postroad.fish
    """
    from .main import postroad

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(postroad, {}, "postroad", _VARIABLE).source())


def completer_of(name: str) -> Complete | None:
    """What completes a parameter of a name, if anything does."""
    known = {it.rpartition(".")[2] for it in LIVE}
    return complete_live if name in known else None


def complete_live(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[Any]:
    """Names that begin as was typed; none if no node answers in time."""
    name = parameter.name or ""
    noun = "" if ctx.parent is None else ctx.parent.info_name
    listed = LIVE.get(f"{noun}.{name}") or LIVE.get(name)
    if listed is None:
        return []
    names: list[str] = []
    # A shell that waits for its user must not wait for a network.
    asking = threading.Thread(target=_ask, args=(ctx, *listed, names), daemon=True)
    asking.start()
    asking.join(_BUDGET_S)
    return [CompletionItem(it) for it in sorted({*names}) if it.startswith(typed)]


def _ask(ctx: click.Context, operation: str, field: str, names: list[str]) -> None:
    from .places import open_desk, take_place

    try:
        with open_desk(take_place(dict(ctx.params))) as desk:
            names += [str(it[field]) for it in desk.do(operation, {})]
    except Exception:  # Nobody reads an error while completing.
        return
