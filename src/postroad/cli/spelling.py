"""How operations are said on the command line, where that is not plain from their signatures.

Invariant, kept by a test: every operation has an example, and every example can be parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How many things a dangerous operation would touch, and where that is read.

    Without an operation it is as many as were named.
    """

    noun: str
    """One of them."""
    operation: str | None = None
    """A read operation that takes some of the same parameters."""
    field: str | None = None
    """The field of its result that counts; None = as many as it lists."""


class Every(msgspec.Struct, frozen=True, kw_only=True):
    """Where those are listed that filters choose, or `--all`."""

    operation: str
    filters: tuple[str, ...]
    """Its parameters that are options here."""
    said: Mapping[str, Any]
    """What it is told besides; what is said here comes first."""
    field: str
    """Of each row: what the operation is told."""
    page: str
    """The parameter that continues the list behind one of them."""
    has_all: bool = False
    """Whether `--all` chooses all of them."""
    ended: str | None = None
    """Rows that have a value in this field are left out, unless `status` is said."""


class Spelling(msgspec.Struct, frozen=True, kw_only=True):
    """How one operation is said."""

    example: str
    """Behind `postroad`."""
    positional: tuple[str, ...] = ()
    """Optional parameters that are arguments nevertheless."""
    each: str | None = None
    """The parameter that may be said several times: the operation is done for each."""
    every: Every | None = None
    """How many of those are chosen at once."""
    pairs: tuple[str, ...] = ()
    """Parameters of any type that are said as `name=value`."""
    joined: str | None = None
    """The last parameter, if it is a text that is said in several words."""
    help: Mapping[str, str] = {}
    """What options mean."""
    scope: Scope | None = None
    """What it touches; for those that are dangerous."""
    warning: str = ""
    """What people are told before they are asked: whatever is dangerous, or was chosen."""
    done: str = ""
    """What is told when it was done; `{count}`, `{when}` and what was said are known in it."""
    whole: tuple[str, ...] = ()
    """Of these parameters one must be said, or `--all`, which stands for no choice at all."""
    listing: str | None = None
    """The command that lists what there is, if it is not `ls` of the same noun."""
    chunk: int | None = None
    """Done in parts of this many, by its parameter `limit`, where somebody watches it."""

    @property
    def counts(self) -> bool:
        """Whether it does nothing where there is nothing of what it touches."""
        return self.scope is not None and self.scope.field is not None and "{count}" in self.done
