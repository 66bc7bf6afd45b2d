"""Saved places: names for the nodes that somebody works with, and `postroad context`."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from postroad.admin import make_private_directory, read_file
from postroad.admin.client import Client
from postroad.admin.errors import NotFound, nearest

from .helping import Group, argument
from .tokens import read_token_file, warn_of_token

_PREVIOUS = "-"


class Saved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place."""

    url: str
    token: str | None = None
    ca: str | None = None
    node: str | None = None


class Contexts(msgspec.Struct, kw_only=True):
    """All saved places, and which one is used."""

    current: str | None = None
    previous: str | None = None
    saved: dict[str, Saved] = {}

    @classmethod
    def load(cls) -> Contexts:
        """What was saved; nothing if nothing was."""
        path = path_of_contexts()
        try:
            return msgspec.json.decode(read_file(path), type=cls)
        except FileNotFoundError:
            return cls()
        except msgspec.MsgspecError as error:
            raise click.ClickException(f"{path} is damaged ({error}): mend or remove it") from None

    def save(self) -> None:
        """Keep all this; tokens are in it, so nobody else may read it."""
        path = path_of_contexts()
        make_private_directory(path.parent)
        written = path.with_suffix(".new")
        written.unlink(missing_ok=True)
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)))
        written.replace(path)

    def find(self, name: str) -> Saved:
        """One place; raises NotFound."""
        found = self.saved.get(name)
        if found is None:
            raise NotFound(
                f"no context is called {name!r}{nearest(name, self.saved)}; see"
                " `postroad context ls`"
            )
        return found

    def use(self, name: str) -> str:
        """Use a place from now on; `-` is the one before."""
        if name == _PREVIOUS:
            if self.previous is None:
                raise click.UsageError("No context was used before this one.")
            name = self.previous
        self.find(name)
        if name != self.current:
            self.previous, self.current = self.current, name
        return name

    def remove(self, name: str) -> None:
        """Forget a place."""
        self.find(name)
        del self.saved[name]
        self.current = None if self.current == name else self.current
        self.previous = None if self.previous == name else self.previous


def path_of_contexts() -> Path:
    """The file they are in."""
    return Path(click.get_app_dir("postroad")) / "contexts.json"


@click.group(cls=Group)
def context() -> None:
    """Save where nodes are, and switch between them.

    \b
    Example: two clusters, and back to the first
      postroad context add prod --url https://10.0.0.1:8222 --token-file prod.token
      postroad context add test --url http://127.0.0.1:8222 --token-file .postroad/alpha.token
      postroad context use prod
      postroad context use -
    """


@context.command()
@argument("name", help="What it shall be called.")
@click.option("--url", required=True, help="The API of a node.")
@click.option("--token", hidden=True, callback=warn_of_token)
@click.option(
    "--token-file", metavar="FILE", help="Holds the token that the API asks for; - is the input."
)
@click.option("--ca", type=click.Path(exists=True, dir_okay=False), help="Certificates to trust.")
@click.option("--node", metavar="NAME", help="The member that is to answer, through that node.")
def add(
    name: str,
    url: str,
    token: str | None,
    token_file: str | None,
    ca: str | None,
    node: str | None,
) -> None:
    """Save a place, and use it if it is the first.

    \b
    Example:
      postroad context add prod --url https://10.0.0.1:8222 --token-file prod.token
    """
    if token_file is not None:
        token = read_token_file(token_file)
    if name == _PREVIOUS:
        raise click.UsageError(f"{_PREVIOUS!r} means the context before; choose another name.")
    # Nobody is called, but nobody could be called by a wrong address either.
    Client(url, token)
    contexts = Contexts.load()
    trusted = None if ca is None else str(Path(ca).resolve())
    contexts.saved[name] = Saved(url=url, token=token, ca=trusted, node=node)
    if contexts.current is None:
        contexts.current = name
    contexts.save()
    click.echo(f"{name} is saved{' and used' if contexts.current == name else ''}.")


@context.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def ls(as_json: bool) -> None:
    """List saved places; tokens are not shown.

    \b
    Example:
      postroad context ls
    """
    from .tables import Column, table

    contexts = Contexts.load()
    rows = [
        {"used": name == contexts.current, "name": name, "url": it.url, "node": it.node}
        for name, it in sorted(contexts.saved.items())
    ]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    elif rows:
        click.echo(table([Column(it, is_number=False) for it in rows[0]], rows))
    else:
        click.echo("None. Save one with: postroad context add NAME --url URL")


@context.command()
@argument("name", help="A saved place; - is the one before.")
def use(name: str) -> None:
    """Use a saved place from now on; - is the one before.

    \b
    Example:
      postroad context use -
    """
    contexts = Contexts.load()
    used = contexts.use(name)
    contexts.save()
    click.echo(f"{used} is used: {contexts.saved[used].url}")


@context.command()
@argument("name", help="A saved place.")
def rm(name: str) -> None:
    """Forget a saved place.

    \b
    Example:
      postroad context rm test
    """
    contexts = Contexts.load()
    contexts.remove(name)
    contexts.save()
    click.echo(f"{name} is forgotten.")
