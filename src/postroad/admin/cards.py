"""What a running node leaves in its data directory, so that the `postroad` command finds it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from postroad.core.errors import ConfigError
from postroad.net.owned_files import (
    check_directory,
    check_file,
    make_private_directory,
    read_file,
)

from .publishing import NewFile, publish

_MODE = 0o600
_CARD_ENDING = ".node.json"
_TOKEN_ENDING = ".token"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a node that runs."""

    name: str
    cluster: str
    pid: int
    url: str
    version: str
    certificate: str | None = None
    """The file of the certificate that it shows."""


def token_path(data: Path, name: str) -> Path:
    """Where the token of a node is kept."""
    return data / f"{name}{_TOKEN_ENDING}"


def keep_token(data: Path, name: str) -> str:
    """The token of a node, made at the first time.

    Raises:
        ConfigError: it cannot be kept there, or somebody else has put one there.
    """
    path = token_path(data, name)
    made = secrets.token_urlsafe(24)
    try:
        make_private_directory(data)
        try:
            publish([NewFile(path, f"{made}\n".encode(), _MODE)], force=False)
        except FileExistsError:
            return read_token(data, name) or _renew(path, made)
    except OSError as error:
        raise ConfigError(
            f"the token of the admin API cannot be kept in {path}: {error.strerror}; "
            "give admin.token, or a node.data that can be written"
        ) from None
    return made


def _renew(path: Path, made: str) -> str:
    """An empty file is what a crash has left."""
    publish([NewFile(path, f"{made}\n".encode(), _MODE)], force=True)
    return made


def read_token(data: Path, name: str) -> str | None:
    """The token of a node as it was kept; None if there is none that can be read.

    Raises:
        ConfigError: somebody else may have put it there.
    """
    try:
        return read_file(token_path(data, name)).decode(errors="replace").strip() or None
    except OSError:
        return None


def leave_card(data: Path, card: Card) -> Path:
    """Tell the others on this machine where the node is reached."""
    path = data / f"{card.name}{_CARD_ENDING}"
    try:
        make_private_directory(data)
        publish([NewFile(path, msgspec.json.encode(card), _MODE)], force=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    return path


def take_card(path: Path, card: Card) -> None:
    """Take the card away, unless another process has left its own."""
    if _read_card(path) == card:
        path.unlink(missing_ok=True)


def find_cards(data: Path) -> list[Card]:
    """The nodes that run, as far as their cards are in this directory; by name.

    Cards that somebody else may have put there are left out: a token would be sent to whomever they
    name.
    """
    try:
        check_directory(data)
        paths = sorted(data.glob(f"*{_CARD_ENDING}"))
    except (OSError, ConfigError):
        return []
    cards = (_read_card(path) for path in paths)
    return [card for card in cards if card is not None and _is_alive(card.pid)]


def check_cards(data: Path, name: str | None = None) -> None:
    """Tell why no card, or that of one node, is believed, if that is so.

    Raises:
        ConfigError: the directory, or a card in it, may have been put there by somebody else.
    """
    try:
        check_directory(data)
        one = [] if name is None else [data / f"{name}{_CARD_ENDING}"]
        for path in one or sorted(data.glob(f"*{_CARD_ENDING}")):
            check_file(path)
    except OSError:
        return


def find_ended(data: Path, name: str) -> Card | None:
    """The card of a node whose process ended without taking it away; None if there is none."""
    card = _read_card(data / f"{name}{_CARD_ENDING}")
    return None if card is None or _is_alive(card.pid) else card


def _read_card(path: Path) -> Card | None:
    try:
        return msgspec.json.decode(read_file(path), type=Card)
    except (OSError, ConfigError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
