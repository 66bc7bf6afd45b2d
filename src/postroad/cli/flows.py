"""`postroad flow`: the flows of a node, from outside of it.

All work happens in `postroad.admin`; here are only arguments and output.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import click
import msgspec

from postroad.admin.flows import (
    FlowsAtRest,
    FlowView,
    Status,
    StepView,
    changing_flows,
    reading_flows,
)

T = TypeVar("T")

_VALUE_CHARS_MAX = 60

_store = click.option("--store", required=True, metavar="PATH|URL", help="The store of the node.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True)


@click.group()
def flow() -> None:
    """Look at the flows of a node, and help those in need.

    Looking is possible while the node runs. What changes a flow takes the store for itself, so
    stop the node first; it goes on from there when it is started again. A running node does the
    same through its API.

    \b
    Example: what waits for an operator, why, and another try
      postroad flow list --store alpha.db --status parked
      postroad flow show --store alpha.db 1a1e418e8a800001
      postroad flow retry --store alpha.db 1a1e418e8a800001
    """


def _operate(
    opening: AbstractAsyncContextManager[FlowsAtRest],
    action: Callable[[FlowsAtRest], Awaitable[T]],
) -> T:
    async def work() -> T:
        async with opening as flows:
            return await action(flows)

    return asyncio.run(work())


def _print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def _time(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds).astimezone():%F %T}"


# Looking.


@flow.command("list")
@_store
@click.option("--status", type=click.Choice([it.value for it in Status]), help="Only those.")
@click.option("--name", help="Only flows of this name.")
@click.option("--before", metavar="ID", help="Continue a list: only flows begun before this one.")
@click.option("--limit", default=100, show_default=True, help="How many to show.")
@_json
def list_flows(
    store: str, status: str | None, name: str | None, before: str | None, limit: int, as_json: bool
) -> None:
    """List flows, the newest first.

    \b
    Example:
      postroad flow list --store alpha.db --status parked --name pay
    """
    views = _operate(
        reading_flows(store),
        lambda flows: flows.list(status, name, before=before, limit=limit),
    )
    if as_json:
        _print_json(views)
        return
    if not views:
        click.echo("No flows.")
        return
    click.echo(f"{'ID':<16} {'STATUS':<8} {'NAME':<24} {'STARTED':<19}  NOTES")
    for view in views:
        columns = f"{view.id:<16} {view.status:<8} {view.name:<24} {_time(view.started_at):<19}"
        click.echo(f"{columns}  {_notes(view)}".rstrip())


def _notes(view: FlowView) -> str:
    notes = [
        None if view.peer is None else f"for {view.peer}",
        None if view.client_id is None else f"as {view.client_id}",
        view.progress,
        None if view.error is None else view.error.splitlines()[0],
    ]
    return ", ".join(it for it in notes if it)


@flow.command()
@_store
@click.argument("id")
@_json
def show(store: str, id: str, as_json: bool) -> None:
    """Show one flow: where it is in its life, and what went wrong.

    \b
    Example:
      postroad flow show --store alpha.db 1a1e418e8a800001
    """
    view = _operate(reading_flows(store), lambda flows: flows.show(id))
    if as_json:
        _print_json(view)
        return
    click.echo(f"flow {view.id}: {view.name}, version {view.version}")
    facts = {
        "status": view.status.value,
        "started": _time(view.started_at),
        "ended": None if view.ended_at is None else _time(view.ended_at),
        "begun as": view.client_id,
        "responds to": view.peer,
        "run": view.run if view.run > 1 else None,
        "progress": view.progress,
        "due": None if view.wakes_at is None else _time(view.wakes_at),
        "attempts": view.attempts or None,
        "error": view.error,
        "error id": view.error_id,
    }
    for name, value in facts.items():
        if value is not None:
            click.echo(f"{name}: {value}")
    if view.detail and view.detail != view.error:
        click.echo(view.detail.rstrip())


@flow.command()
@_store
@click.argument("id")
@_json
def history(store: str, id: str, as_json: bool) -> None:
    """Show the steps of a flow, in the order they were done.

    \b
    Example:
      postroad flow history --store alpha.db 1a1e418e8a800001
    """
    steps = _operate(reading_flows(store), lambda flows: flows.history(id))
    if as_json:
        _print_json(steps)
        return
    if not steps:
        click.echo("No steps yet.")
        return
    click.echo(f"{'STEP':>5}  {'PLACE':<8} {'KIND':<12} {'NAME':<24} {'AT':<19}  RESULT")
    for step in steps:
        columns = f"{step.number:>5}  {step.place:<8} {step.kind:<12} {step.name:<24}"
        click.echo(f"{columns} {_time(step.at):<19}  {_result(step)}".rstrip())


def _result(step: StepView) -> str:
    if step.error is not None:
        return f"failed: {step.error.splitlines()[0]}"
    text = "" if step.value is None else repr(step.value)
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[: _VALUE_CHARS_MAX - 3]}..."


# Changing.


def _count(number: int) -> str:
    return "1 flow" if number == 1 else f"{number:,} flows"


def _change_each(
    store: str, ids: tuple[str, ...], action: Callable[[FlowsAtRest, str], Awaitable[None]]
) -> None:
    async def act(flows: FlowsAtRest) -> None:
        for id in ids:
            await action(flows, id)

    _operate(changing_flows(store), act)


@flow.command()
@_store
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--all", "all_of_them", is_flag=True, help="All that are parked.")
def retry(store: str, ids: tuple[str, ...], all_of_them: bool) -> None:
    """Have flows tried again that are parked, or wait to be tried again.

    \b
    Example:
      postroad flow retry --store alpha.db --all
    """
    if bool(ids) == all_of_them:
        raise click.UsageError("Give either ids of flows, or --all.")

    async def act(flows: FlowsAtRest) -> int:
        wanted = [*ids] if ids else await flows.all_of(Status.PARKED)
        for id in wanted:
            await flows.retry(id)
        return len(wanted)

    count = _operate(changing_flows(store), act)
    click.echo(f"{_count(count)} will be tried again when the node is started.")


@flow.command()
@_store
@_ids
@click.option(
    "--reason",
    default="killed by an operator",
    help="Why; kept here. The other ends are told its error id only.",
)
@_yes
def kill(store: str, ids: tuple[str, ...], reason: str, yes: bool) -> None:
    """End flows for good; everybody they talk to is told that they have failed.

    \b
    Example:
      postroad flow kill --store alpha.db 1a1e418e8a800001 --reason "paid by hand"
    """
    if not yes:
        click.confirm("A flow that is killed never goes on. Go on?", abort=True)
    _change_each(store, ids, lambda flows, id: flows.kill(id, reason))
    click.echo(f"{_count(len(ids))} killed.")


@flow.command()
@_store
@_ids
def pause(store: str, ids: tuple[str, ...]) -> None:
    """Have flows rest until they are resumed; what is said to them is kept.

    \b
    Example:
      postroad flow pause --store alpha.db 1a1e418e8a800001
    """
    _change_each(store, ids, lambda flows, id: flows.pause(id))
    click.echo(f"{_count(len(ids))} paused.")


@flow.command()
@_store
@_ids
def resume(store: str, ids: tuple[str, ...]) -> None:
    """Have flows go on that were paused.

    \b
    Example:
      postroad flow resume --store alpha.db 1a1e418e8a800001
    """
    _change_each(store, ids, lambda flows, id: flows.resume(id))
    click.echo(f"{_count(len(ids))} will go on when the node is started.")


@flow.command()
@_store
@click.argument("id")
@click.argument("step", type=int)
def fork(store: str, id: str, step: int) -> None:
    """Begin a flow anew from one of its steps, as another flow; print the id of that one.

    What comes before STEP counts as done; it may not have opened a session, because two flows
    cannot have one.

    \b
    Example:
      postroad flow fork --store alpha.db 1a1e418e8a800001 3
    """
    click.echo(_operate(changing_flows(store), lambda flows: flows.fork(id, step)))


@flow.command()
@_store
@click.argument("id")
@click.argument("name")
@click.argument("value", required=False, metavar="[JSON]")
def signal(store: str, id: str, name: str, value: str | None) -> None:
    """Send a signal to a flow, with a value as JSON; it gets it when the node is started.

    \b
    Example:
      postroad flow signal --store alpha.db 1a1e418e8a800001 approved '{"by": "ann"}'
    """
    decoded = None if value is None else _decode(value)
    _operate(changing_flows(store), lambda flows: flows.signal(id, name, decoded))
    click.echo(f"Signal {name} waits for flow {id}.")


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise click.UsageError(
            f"{text!r} is not JSON ({error}). A text needs quotes of its own: '\"yes\"'."
        ) from None
