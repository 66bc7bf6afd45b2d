"""`postroad call` and `postroad emit`: what people do most with services."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from postroad.admin import PostroadError
from postroad.admin.errors import NotFound
from postroad.admin.operations import OPERATIONS

from .completion import complete_live
from .helping import argument
from .parameters import PAIRS, Document
from .places import PlacedCommand, open_desk, take_place
from .rendering import print_json, render_result


@click.command(cls=PlacedCommand)
@argument("action", shell_complete=complete_live, help="Service and action, as greeter.hello.")
@argument(
    "params", nargs=-1, type=PAIRS, metavar="[NAME=VALUE]...", help="What the action is told."
)
@click.option(
    "--params",
    "document",
    type=Document('{"item": "book", "count": 2}', is_object=True),
    help="All parameters, in place of these.",
)
@click.option("--on", "node_id", metavar="NODE", help="The node that is to do it.")
@click.option(
    "--timeout", "timeout_s", type=float, default=30.0, show_default=True, help="Seconds."
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def call(
    action: str,
    params: tuple[tuple[str, Any], ...],
    document: Any,
    node_id: str | None,
    timeout_s: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Call an action of a service.

    Values are JSON if they can be, else text: count=2 is a number, name=Ann a text.

    \b
    Example:
      postroad call greeter.hello name=Ann
      postroad call orders.create --params '{"item": "book", "count": 2}'
    """
    said: dict[str, Any] = {"action": action, "timeout_s": timeout_s}
    content = choose_content(params, document)
    if content is not None:
        said["params"] = content
    if node_id is not None:
        said["node_id"] = node_id
    with open_desk(take_place(given)) as desk:
        try:
            result = desk.do("service.call", said)
        except NotFound as error:
            error.add_note("postroad service actions")
            raise
        except PostroadError as error:
            if meant := _as_texts(error, params):
                error.add_note(f"postroad call {action} {meant}")
            raise
    # A node of an older version has none.
    for it in result.get("warnings", ()):
        click.echo(f"postroad: {it}", err=True)
    _show("service.call", result, as_json)


@click.command(cls=PlacedCommand)
@argument("event", shell_complete=complete_live, help="Its name, as order.created.")
@argument("data", nargs=-1, type=PAIRS, metavar="[NAME=VALUE]...", help="What it tells.")
@click.option(
    "--data-json",
    "document",
    type=Document('{"id": 17}', is_object=False),
    help="All data, in place of these.",
)
@click.option("--durable", is_flag=True, help="Keep it until every group has handled it.")
@click.option("--broadcast", is_flag=True, help="To all nodes, and not to one of each group.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def emit(
    event: str,
    data: tuple[tuple[str, Any], ...],
    document: Any,
    durable: bool,
    broadcast: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Emit an event.

    \b
    Example:
      postroad emit order.created id=17
    """
    said: dict[str, Any] = {"event": event, "durable": durable, "broadcast": broadcast}
    content = choose_content(data, document)
    if content is not None:
        said["data"] = content
    with open_desk(take_place(given)) as desk:
        result = desk.do("service.emit", said)
    if not result["groups"]:
        click.echo(f"postroad: nobody listens to {event}; see `postroad service events`", err=True)
    _show("service.emit", result, as_json)


def choose_content(pairs: tuple[tuple[str, Any], ...], document: Any) -> Any:
    """What was said as pairs or as one document."""
    if document is None:
        return dict(pairs) or None
    if pairs:
        raise click.UsageError("Say either name=value, or one document as JSON.")
    return document


def _as_texts(error: PostroadError, pairs: tuple[tuple[str, Any], ...]) -> str:
    """The same pairs with texts where the action wants them; empty if it does not.

    What looks like a number is one, unless it stands in quotes.
    """
    problems = getattr(error, "data", None)
    listed = [it for it in problems if isinstance(it, dict)] if isinstance(problems, list) else []
    wrong = {it.get("field") for it in listed if it.get("type") == "string"}
    wrong &= {name for name, value in pairs if not isinstance(value, str)}
    if not wrong:
        return ""
    return " ".join(shlex.quote(f"{name}={_written(name in wrong, it)}") for name, it in pairs)


def _written(is_text: bool, value: Any) -> str:
    """A value as it is said on the command line."""
    told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return json.dumps(told, ensure_ascii=False) if is_text else told


def _show(name: str, result: Any, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        click.echo(render_result(OPERATIONS[name], result))
