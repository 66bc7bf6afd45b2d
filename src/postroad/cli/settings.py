"""Options of commands that read the configuration of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from postroad.node.reading import Loaded

Command = TypeVar("Command", bound=Callable[..., Any])


def settings_options(command: Command) -> Command:
    """Give a command `--config` and `--set`, which it hands to `load`."""
    options = (
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="The configuration; POSTROAD_CONFIG or postroad.toml by default.",
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            callback=_read_settings,
            help="One setting, over the file and the environment. Can be given several times.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _read_settings(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    read = {}
    for it in values:
        key, equals, value = it.partition("=")
        if not equals:
            raise click.BadParameter(f"{it!r} is not of the form KEY=VALUE, as in node.name=alpha")
        read[key.strip()] = value
    return read


_warned: set[str] = set()


def _warn_of_secrets(settings: Mapping[str, str]) -> None:
    """Tell whoever types a secret who else can read it; once."""
    from postroad.node.former_settings import current_name
    from postroad.node.keys import settings_keys, without_passwords

    for name, text in settings.items():
        key = settings_keys().get(current_name(name))
        if key is None or name in _warned:
            continue
        if key.is_secret or without_passwords(text) != text:
            _warned.add(name)
            click.secho(
                f"--set {name}=... can be read by every user of this machine while this runs: put"
                f" it into the configuration, readable by you alone, or into {key.variable}.",
                fg="yellow",
                err=True,
            )


def load(
    config: Path | None, settings: Mapping[str, str], **named: tuple[str, str | None]
) -> Loaded:
    """Read the configuration.

    Args:
        config, settings: the values of the options.
        named: settings that have options of their own, `node__name=("--name", value)`.
    """
    from postroad.node.reading import load_config

    _warn_of_secrets(settings)
    flags, names = dict(settings), {}
    for field, (option, value) in named.items():
        if value is not None:
            key = field.replace("__", ".")
            flags[key], names[key] = value, option
    return load_config(config, flags=flags, flag_names=names)
