"""`postroad config`: what a node would be told, and where each value comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from postroad.node.checking import check_files
from postroad.node.keys import Key, sections, settings_keys
from postroad.node.reading import DEFAULT, Loaded, format_value, nearest

from .helping import Group, argument
from .settings import load, settings_options

_section = argument(
    "section", required=False, help="Only settings that begin so, as durable; all by default."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@click.group(cls=Group)
def config() -> None:
    """Show, check and explain the configuration of a node.

    A setting is in postroad.toml, in the environment (node.name is POSTROAD_NODE_NAME), or given by
    --set; what comes later in this list wins.

    \b
    Example: see what was changed, and where
      postroad config show --changed --origin
    """


@config.command()
@_section
@settings_options
@click.option("--origin", is_flag=True, help="Tell where each value comes from.")
@click.option("--changed", is_flag=True, help="Leave out what has its default.")
@_json
def show(
    section: str | None,
    config: Path | None,
    settings: Mapping[str, str],
    origin: bool,
    changed: bool,
    as_json: bool,
) -> None:
    """Print every setting as a node started here would have it.

    Tokens and passwords are not shown. What is printed is a postroad.toml; settings without a value
    are comments in it.

    \b
    Example:
      postroad config show queues --set queues.store=memory --origin
    """
    loaded = load(config, settings)
    keys = [it for it in _keys_of(section) if not changed or loaded.origins[it.name] != DEFAULT]
    if as_json:
        told = {
            it.name: {"value": loaded.shown(it.name), "origin": loaded.origins[it.name]}
            for it in keys
        }
        click.echo(msgspec.json.encode(told))
        return
    for it in keys:
        click.echo(_line(it, loaded, origin))


def _line(key: Key, loaded: Loaded, with_origin: bool) -> str:
    value = format_value(key, loaded.value(key.name))
    line = f"{key.name} = {value}" if value else f"# {key.name}"
    return f"{line}  # {loaded.origins[key.name]}" if with_origin else line


@config.command()
@settings_options
def check(config: Path | None, settings: Mapping[str, str]) -> None:
    """Say whether a node could be started with the configuration; every mistake is told.

    Certificates, the program and job files are looked at too. Nothing is started, and the
    program is not run.

    \b
    Example:
      postroad config check --config production.toml
    """
    loaded = load(config, settings)
    problems = check_files(loaded.config)
    if problems:
        raise click.ClickException("\n  ".join(problems))
    given = sum(it != DEFAULT for it in loaded.origins.values())
    where = "no file" if loaded.path is None else str(loaded.path)
    click.echo(f"Good: {given} of {len(loaded.origins)} settings given, {where} read.")


@config.command()
@_section
@_json
def keys(section: str | None, as_json: bool) -> None:
    """List every setting: its type, its default, and what it means.

    \b
    Example:
      postroad config keys mail
    """
    found = [*_keys_of(section)]
    if as_json:
        click.echo(msgspec.json.encode([_describe(it) for it in found]))
        return
    table = None
    for key in found:
        if key.section != table:
            click.echo(
                ("" if table is None else "\n") + f"[{key.section}]  {sections()[key.section]}"
            )
            table = key.section
        name = key.name.rpartition(".")[2]
        click.echo(f"  {name} = {tell_default(key)}  ({key.type_name})")
        click.echo(f"      {key.meaning}")


def _describe(key: Key) -> dict[str, object]:
    return {
        "key": key.name,
        "variable": key.variable,
        "type": key.type_name,
        "default": None if key.is_computed else key.show(key.default),
        "meaning": key.meaning,
    }


def tell_default(key: Key) -> str:
    """A default, for people."""
    if key.is_required:
        return "(must be given)"
    if key.is_computed:
        return "(depends on the machine)"
    return format_value(key, key.default) or "(not set)"


def _keys_of(section: str | None) -> Iterator[Key]:
    """All settings, or those of a table, or one."""
    everything = settings_keys()
    found = [
        it
        for it in everything.values()
        if section is None or it.name == section or it.name.startswith(f"{section}.")
    ]
    if not found:
        close = nearest(str(section), (*everything, *sections()))
        hint = f" Did you mean {close}?" if close else f" Sections: {', '.join(sections())}."
        raise click.UsageError(f"There is no setting {section}.{hint}")
    yield from found
