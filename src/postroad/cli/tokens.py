"""Tokens that people give to commands: from a file or the environment, where others cannot look."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.core import ParameterSource

from postroad.admin import read_file


def warn_of_token(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Tell whoever types a token who else can read it."""
    if (
        value is not None
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ):
        click.secho(
            "--token can be read by every user of this machine while the command runs: use"
            " --token-file, or POSTROAD_TOKEN.",
            fg="yellow",
            err=True,
        )
    return value


def read_token_file(path: str) -> str:
    """The token in a file, `-` for the standard input.

    Raises:
        ConfigError: somebody else may have put it there.
        click.UsageError: there is none that can be read.
    """
    try:
        content = sys.stdin.buffer.read() if path == "-" else read_file(Path(path))
    except OSError as error:
        raise click.UsageError(f"--token-file {path} cannot be read: {error.strerror}.") from None
    token = content.decode(errors="replace").strip()
    if not token:
        raise click.UsageError(f"--token-file {path} is empty.")
    return token
