"""Which node a command is for: what was said, what is saved, or the only one that runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from postroad.admin.cards import Card, check_cards, find_ended, token_path
from postroad.admin.client import Client, Tls, find_nodes
from postroad.admin.errors import NotFound, nearest
from postroad.admin.watchers import find_watcher

from .completion import complete_live
from .contexts import Contexts
from .desks import ApiDesk, Desk, StoreDesk
from .helping import Command
from .tokens import read_token_file, warn_of_token

DATA = ".postroad"
"""Where nodes leave their cards unless they are told otherwise."""

_LOOK_S = 0.1
_MENDED_S = 1.5
_RESTART_S = 15.0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about where."""

    url: str | None = None
    token: str | None = None
    token_file: str | None = None
    node: str | None = None
    data: str | None = None
    store: str | None = None
    context: str | None = None
    ca: str | None = None


_PREFIX = "place_"
"""Of the names of these options: operations have parameters called `node` and `data` too."""


def _option(name: str, **told: Any) -> click.Option:
    return click.Option([f"--{name}", f"{_PREFIX}{name.replace('-', '_')}"], **told)


_OPTIONS = (
    _option("url", envvar="POSTROAD_URL", help="The API of a node; or POSTROAD_URL."),
    _option("token", envvar="POSTROAD_TOKEN", hidden=True, callback=warn_of_token),
    _option(
        "token-file",
        metavar="FILE",
        envvar="POSTROAD_TOKEN_FILE",
        help="Holds the token that the API asks for; or POSTROAD_TOKEN.",
    ),
    _option("ca", envvar="POSTROAD_CA", help="Certificates to trust, for https; or POSTROAD_CA."),
    _option(
        "node",
        metavar="NAME",
        help="A running node, or one it can reach.",
        shell_complete=complete_live,
    ),
    _option("data", metavar="DIR", help=f"Where running nodes are looked for; {DATA} by default."),
    _option("store", metavar="PATH|URL", help="The store of a node that is stopped."),
    _option(
        "context",
        metavar="NAME",
        envvar="POSTROAD_CONTEXT",
        help="A place saved by postroad context; or POSTROAD_CONTEXT.",
    ),
)
OPTION_NAMES = tuple(it.name for it in _OPTIONS)


def place_options() -> list[click.Parameter]:
    """The options that say where."""
    return [*_OPTIONS]


def take_place(given: dict[str, Any]) -> Place:
    """What was said about where, taken out of all that was said."""
    names = Place.__struct_fields__
    return Place(**{name: given.pop(f"{_PREFIX}{name}", None) for name in names})


# The last one is meant. No context variable: names are completed in other threads.
_usual: list[Place] = []


@contextmanager
def placed(place: Place) -> Iterator[None]:
    """Have commands be for a place unless they say another."""
    _usual.append(place)
    try:
        yield
    finally:
        _usual.pop()


class PlacedCommand(Command):
    """A command that is for a node; its help tells the options that say which apart."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params = [*self.params, *place_options()]

    def section_of(self, option: click.Parameter) -> str:
        return "Where" if option.name in OPTION_NAMES else super().section_of(option)


def open_desk(place: Place) -> Desk:
    """Find who answers.

    Raises:
        NotFound: nobody runs there.
        click.UsageError: it is not clear who is meant.
    """
    if place == Place() and _usual:
        place = _usual[-1]
    if place.token_file is not None:
        place = msgspec.structs.replace(
            place, token=read_token_file(place.token_file), token_file=None
        )
    if place.store is not None:
        if place.url is not None or place.node is not None:
            raise click.UsageError("--store is of a stopped node: leave out --url and --node.")
        return StoreDesk(place.store)
    if place.context is not None:
        return _open_saved(place, place.context)
    if place.url is not None:
        return _open_url(place, place.url)
    current = Contexts.load().current
    if current is not None and place.data is None:
        return _open_saved(place, current)
    return _open_found(place)


def _open_url(place: Place, url: str, context: str = "NAME") -> Desk:
    advice = (
        "--token-file FILE, or POSTROAD_TOKEN; or save it:"
        f" postroad context add {context} --url {url} --token-file FILE"
    )
    client = Client(url, place.token, tls=Tls(trust=place.ca))
    return ApiDesk(client, url, place.node, advice=advice)


def _open_saved(place: Place, name: str) -> Desk:
    saved = Contexts.load().find(name)
    merged = msgspec.structs.replace(
        place,
        token=place.token or saved.token,
        ca=place.ca or saved.ca,
        node=place.node or saved.node,
    )
    return _open_url(merged, saved.url, name)


def _await_restart(data: Path) -> list[Card]:
    """The node that `postroad dev` is just starting again, if it does.

    Raises:
        NotFound: it cannot.
    """
    began = time.monotonic()
    while (watcher := find_watcher(data)) is not None:
        if cards := find_nodes(data):
            return cards
        waited_s = time.monotonic() - began
        # What was wrong may be mended already, and the program on its way.
        if watcher.problem is not None and waited_s > _MENDED_S:
            raise NotFound(f"no node runs: `postroad dev` waits for a save; {watcher.problem}")
        if waited_s > _RESTART_S:
            raise NotFound(
                f"no node runs: `postroad dev`, process {watcher.pid}, has not started it yet; see"
                " what it says"
            )
        time.sleep(_LOOK_S)
    return []


def _check_only(data: Path, cards: list[Card], name: str | None) -> None:
    """Refuse where it is not clear whom a command is for.

    Args:
        cards: of the nodes that run.
        name: of a node that is none of them.
    """
    if name is not None and (ended := find_ended(data, name)) is not None:
        raise NotFound(
            f"node {name} does not run: its process {ended.pid} has ended. Start it again, or look"
            " into its store with --store"
        )
    if name is not None or not cards:
        check_cards(data, name)
    if not cards:
        raise NotFound(
            f"no node runs in {data}: start one with `postroad dev`, or say where it is with --url,"
            " --data or --store"
        )
    if len(cards) == 1:
        return
    listed = ", ".join(f"{it.name} ({it.url})" for it in cards)
    if name is None:
        raise click.UsageError(f"Several nodes run in {data}: {listed}. Say which with --node.")
    raise NotFound(
        f"no node {name!r} runs in {data}{nearest(name, [it.name for it in cards])}: there are"
        f" {listed}. A member elsewhere is reached through one of them: --url URL --node {name}"
    )


def _open_found(place: Place) -> Desk:
    data = Path(place.data or DATA)
    cards = find_nodes(data) or _await_restart(data)
    named = [it for it in cards if it.name == place.node]
    if not named:
        _check_only(data, cards, place.node)
    card = (named or cards)[0]
    # Whom no card tells of may be another member, which this one can reach.
    member = None if named else place.node
    kept = token_path(data, card.name)
    advice = (
        f"leave out --token-file and POSTROAD_TOKEN: that of node {card.name} is read from {kept}"
        if place.token is not None and kept.exists()
        else "--token-file FILE, or POSTROAD_TOKEN"
    )
    client = Client.of(card, data, token=place.token)
    return ApiDesk(client, f"node {card.name}", member, advice=advice)
