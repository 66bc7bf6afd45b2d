"""Where commands are answered: at the API of a node, or at the store of one that is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Protocol, Self, TypeVar

import click
import msgspec

from postroad.admin.client import Client
from postroad.admin.errors import WrongToken
from postroad.admin.operations import OPERATIONS, StoreOffice, at_rest

T = TypeVar("T")
Said = Mapping[str, Any]


class Desk(Protocol):
    """Somebody who does operations, and gives their results as dicts and lists."""

    @property
    def label(self) -> str:
        """Who it is, for people."""

    @property
    def is_running(self) -> bool:
        """Whether a node does it, and not only its store."""

    def do(self, operation: str, said: Said) -> Any:
        """Do one operation."""

    def watch(self, wanted: Sequence[tuple[str, Said]]) -> Iterator[tuple[str, Any]]:
        """Do operations again and again, and tell each result that differs from the last one."""

    def close(self) -> None:
        """Let it go."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class ApiDesk:
    """A node that runs, asked through its API.

    Args:
        member: the node that is to do it, if another one than that which is asked.
        advice: what to do if the token is not the right one.
    """

    is_running = True

    def __init__(
        self, client: Client, label: str, member: str | None = None, *, advice: str = ""
    ) -> None:
        self.client = client
        self._advice = advice
        self.label = label if member is None else f"{member} (through {label})"
        self._member = member

    def do(self, operation: str, said: Said) -> Any:
        """Do one operation."""
        is_read = OPERATIONS.find(operation).is_read
        with self._advised():
            return self.client.call(operation, said, node=self._member, is_read=is_read)

    def watch(self, wanted: Sequence[tuple[str, Said]]) -> Iterator[tuple[str, Any]]:
        """Results as the node tells that they have changed."""
        with self._advised():
            yield from self.client.watch(wanted, node=self._member)

    @contextmanager
    def _advised(self) -> Iterator[None]:
        """Tell those who are refused what they can do here, and not what programs do."""
        try:
            yield
        except WrongToken as error:
            error.__notes__ = [self._advice]
            raise

    def close(self) -> None:
        """Hang up."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StoreDesk:
    """The store of a node that is stopped; it is opened when it is first needed.

    What only looks can look while the node runs; what changes something locks the node out.
    """

    is_running = False

    def __init__(self, location: str) -> None:
        self.label = location
        self._location = location
        self._runner = asyncio.Runner()
        self._opened: AbstractAsyncContextManager[StoreOffice] | None = None
        self._office: StoreOffice | None = None
        self._can_change = False

    def do(self, operation: str, said: Said) -> Any:
        """Do one operation."""
        found = OPERATIONS.find(operation)
        params = found.read_params(said)
        office = self._open(can_change=not found.is_read)
        return msgspec.to_builtins(self._runner.run(found(office, params)))

    def _open(self, *, can_change: bool) -> StoreOffice:
        if self._office is not None and (self._can_change or not can_change):
            return self._office
        self._close_office()
        self._opened = at_rest(self._location, can_change=can_change)
        self._office = self._runner.run(_wait(self._opened.__aenter__()))
        self._can_change = can_change
        return self._office

    def watch(self, wanted: Sequence[tuple[str, Said]]) -> Iterator[tuple[str, Any]]:
        """Nothing changes in a store of a node that is stopped."""
        raise click.UsageError(
            "--watch needs a running node: start it with `postroad node start`, and leave out"
            " --store"
        )

    def close(self) -> None:
        """Close the store."""
        self._close_office()
        self._runner.close()

    def _close_office(self) -> None:
        opened, self._opened, self._office = self._opened, None, None
        if opened is not None:
            self._runner.run(_wait(opened.__aexit__(None, None, None)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _wait(awaitable: Awaitable[T]) -> T:
    return await awaitable
