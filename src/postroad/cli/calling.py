"""`postroad call` and `postroad emit`: what people do most with services."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from postroad.admin.operations import OPERATIONS

from .completion import complete_live
from .parameters import PAIRS
from .places import PlacedCommand, open_desk, take_place
from .rendering import print_json, render_result


@click.command(cls=PlacedCommand)
@click.argument("action", shell_complete=complete_live)
@click.argument("params", nargs=-1, type=PAIRS, metavar="[NAME=VALUE]...")
@click.option("--params", "document", metavar="JSON", help="All parameters, in place of these.")
@click.option("--on", "node_id", metavar="NODE", help="The node that is to do it.")
@click.option(
    "--timeout", "timeout_s", type=float, default=30.0, show_default=True, help="Seconds."
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def call(
    action: str,
    params: tuple[tuple[str, Any], ...],
    document: str | None,
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
    _do("service.call", said, as_json, given)


@click.command(cls=PlacedCommand)
@click.argument("event", shell_complete=complete_live)
@click.argument("data", nargs=-1, type=PAIRS, metavar="[NAME=VALUE]...")
@click.option("--data-json", "document", metavar="JSON", help="All data, in place of these.")
@click.option("--durable", is_flag=True, help="Keep it until every group has handled it.")
@click.option("--broadcast", is_flag=True, help="To all nodes, and not to one of each group.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def emit(
    event: str,
    data: tuple[tuple[str, Any], ...],
    document: str | None,
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
    _do("service.emit", said, as_json, given)


def choose_content(pairs: tuple[tuple[str, Any], ...], document: str | None) -> Any:
    """What was said as pairs or as one document."""
    if document is None:
        return dict(pairs) or None
    if pairs:
        raise click.UsageError("Say either name=value, or one document as JSON.")
    try:
        return msgspec.json.decode(document)
    except msgspec.DecodeError as error:
        raise click.UsageError(f"{document!r} is not JSON: {error}.") from None


def _do(name: str, said: dict[str, Any], as_json: bool, given: dict[str, Any]) -> None:
    with open_desk(take_place(given)) as desk:
        result = desk.do(name, said)
    if as_json:
        print_json(result)
    else:
        click.echo(render_result(OPERATIONS[name], result))
