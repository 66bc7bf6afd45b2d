"""`postroad errors`: what errors mean, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
import msgspec

from postroad.admin import PostroadError
from postroad.admin.errors import NotFound, nearest

from .failures import NEXT
from .helping import Command, argument
from .rendering import print_json
from .tables import render


class ErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """An error that Postroad raises."""

    code: int
    name: str
    meaning: str
    retryable: bool
    """Whether trying again later can help."""
    next: str | None
    """The command to try."""


@click.command(cls=Command)
@argument(
    "which", metavar="[CODE|NAME]", required=False, help="Of one error; all are listed without."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def errors(which: str | None, as_json: bool) -> None:
    """Explain an error, or list them all.

    \b
    Example:
      postroad errors 5110
      postroad errors StoreLockedError
    """
    known = sorted(known_errors(), key=lambda it: (it.code, it.name))
    if which is None:
        listed = [msgspec.structs.replace(it, meaning=it.meaning.split("\n")[0]) for it in known]
        _show(listed, as_json)
        return
    found = [it for it in known if which in (str(it.code), it.name)]
    if not found:
        names = [it.name for it in known]
        raise NotFound(f"no error has the code or name {which!r}{nearest(which, names)}")
    if as_json:
        _show(found, as_json)
        return
    click.echo("\n\n".join(_explain(it) for it in found))


def _show(views: list[ErrorView], as_json: bool) -> None:
    told = msgspec.to_builtins(views)
    if as_json:
        print_json(told)
    else:
        click.echo(render(list[ErrorView], told))


def _explain(it: ErrorView) -> str:
    lines = [f"{it.name}, error {it.code}", "", it.meaning, ""]
    lines.append("Trying again later can help." if it.retryable else "Trying again does not help.")
    if it.next:
        lines.append(f"Try: {it.next}")
    return "\n".join(lines)


def known_errors() -> list[ErrorView]:
    """Every error of every layer."""
    # They are known once the layers are: these two reach all of them.
    import postroad.admin.operations
    import postroad.admin.pipeline  # noqa: F401

    return [_view(it) for it in _family(PostroadError)]


def _family(kind: type[PostroadError]) -> Iterator[type[PostroadError]]:
    if not kind.__module__.startswith("postroad."):
        return
    yield kind
    for below in kind.__subclasses__():
        yield from _family(below)


def _view(kind: type[PostroadError]) -> ErrorView:
    return ErrorView(
        code=kind.code,
        name=kind.__name__,
        meaning=inspect.cleandoc(kind.__doc__ or ""),
        retryable=kind.retryable is True,
        next=NEXT.get(kind.__name__) or None,
    )
