"""The secret of a cluster on one machine: made by `postroad dev`, found by every node beside it."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

import click

from postroad.node.reading import DEFAULT, Loaded

FILE = "cluster.secret"
"""In the data directory."""

_MODE = 0o600
_BYTES = 32


def find_secret(loaded: Loaded) -> dict[str, str]:
    """The setting that names the secret in the data directory, if there is one and nothing else."""
    path = loaded.config.data / FILE
    if _is_closed(loaded) or not path.exists():
        return {}
    if path.stat().st_uid not in (os.getuid(), 0):
        raise click.ClickException(
            f"{path} belongs to somebody else; remove it, or set node.secret_file"
        )
    return {"node.secret_file": str(path)}


def make_secret(loaded: Loaded) -> dict[str, str]:
    """The same, after making it if it is not there."""
    path = loaded.config.data / FILE
    if not _is_closed(loaded) and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_once(path, f"{secrets.token_hex(_BYTES)}\n".encode())
    return find_secret(loaded)


def _is_closed(loaded: Loaded) -> bool:
    """Whether the configuration says something about it."""
    given = ("node.secret", "node.secret_file")
    return loaded.config.tls is not None or any(loaded.origins[it] != DEFAULT for it in given)


def _write_once(path: Path, content: bytes) -> None:
    """Write a file that appears whole, unless another process was faster."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with os.fdopen(os.open(temporary, flags, _MODE), "wb") as file:
            file.write(content)
        with suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
