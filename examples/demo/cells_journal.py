"""What satellites write down of each message, to be compared when all is over."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec


class Handled(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """A consumer was given a call."""

    call: int
    attempt: int


class Copied(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A subscriber was given a copy of a publication."""

    number: int


class Published(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """A publication was sent."""

    number: int
    at_s: float


class Attempted(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """An attempt of a call ended."""

    call: int
    attempt: int
    began_s: float
    """This and the next on the clock of `time.monotonic`."""
    ended_s: float
    handler: str = ""
    """Who answered; nobody if it failed."""
    outcome: str = ""
    """Of an attempt that failed."""


Entry: TypeAlias = Handled | Copied | Published | Attempted


class Journal:
    """The file, as the process that writes it has it."""

    def __init__(self, path: str, *, buffering: int = -1) -> None:
        """With a `buffering` of 0 each entry outlives the process as soon as it is written."""
        self._file = Path(path).open("ab", buffering)  # noqa: SIM115 - closed with the journal
        self._encode = msgspec.json.Encoder().encode

    def write(self, entry: msgspec.Struct) -> None:
        """Add an entry; the file has it after the next `flush`."""
        self._file.write(self._encode(entry) + b"\n")

    def flush(self) -> None:
        """Have the file hold everything."""
        self._file.flush()

    def close(self) -> None:
        """Write no more."""
        self._file.close()


def read_journal(path: Path) -> list[Entry]:
    """Everything a process has written."""
    decode = msgspec.json.Decoder(Entry).decode
    return [decode(line) for line in path.read_bytes().splitlines()]
