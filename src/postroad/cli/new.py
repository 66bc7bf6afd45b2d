"""`postroad new`: a small project that works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from .helping import Command, argument

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# So that no tool takes the files of the project for modules of this package.
_ENDING = ".txt"
_PLACE = "{{name}}"


@click.command(cls=Command)
@argument(
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="NAME",
    help="The directory to make; the project is called like it.",
)
def new(directory: Path) -> None:
    """Write a small project that works.

    NAME is the directory, which is made or must be empty. It gets a program with a service, a
    consumer of durable messages and a flow; a pipeline; a configuration; and tests.

    \b
    Example:
      postroad new shop
      cd shop
      postroad dev
    """
    name = directory.resolve().name
    if not _NAME.fullmatch(name):
        raise click.UsageError(
            f"{name!r} cannot be the name of a project; "
            "use letters, digits, '-' and '_', a letter first."
        )
    if directory.exists() and any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty; choose another name, or empty it.")
    written = [*_write(files(__package__) / "project", directory, name)]
    for path in sorted(written):
        click.echo(f"  {path}")
    click.echo(f"Run it: {'' if directory == Path('.') else f'cd {directory} && '}postroad dev")


def _write(source: Traversable, target: Path, name: str) -> Iterator[Path]:
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"{target} cannot be made: {error.strerror}") from None
    for entry in source.iterdir():
        if entry.is_dir():
            yield from _write(entry, target / entry.name, name)
        elif entry.name.endswith(_ENDING):
            path = target / entry.name.removesuffix(_ENDING)
            path.write_text(entry.read_text("utf-8").replace(_PLACE, name), encoding="utf-8")
            yield path
