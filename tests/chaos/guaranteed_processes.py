"""Domains with guaranteed queues in processes of their own, as a test sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from postroad.cells import Role
from tests.support.durable.mail_processes import SQLITE, MailNode, database, introduce, running


class DomainNode(MailNode):
    """A domain that can be killed and started again, on the same store and port."""

    module = "tests.chaos.guaranteed_node"

    def __init__(self, name: str, directory: Path, *cores: DomainNode, **options: Any) -> None:
        super().__init__(name, directory, **options)
        self._cores = cores
        self._consumes = False

    @property
    def arguments(self) -> Sequence[str]:
        """Its role, whether it has the cell that it had, and where cores are."""
        role = Role.SATELLITE if self._cores else Role.CORE
        cores = [f"{core.name}={core.address}" for core in self._cores]
        return (role.value, "yes" if self._consumes else "no", *cores)

    async def send(self, first: int, count: int) -> bool:
        """Have it send; whether it lived to see that done."""
        self.tell("send", first, count)
        return await self.line() == "sent"

    async def consume(self, *, is_wanted: bool = True) -> None:
        """Let the cell that consumes the queue in, or go."""
        self._consumes = is_wanted
        self.tell("consume" if is_wanted else "unconsume")
        assert await self.line() == "done"

    def forget_cell(self) -> None:
        """When it starts the next time, no cell consumes the queue."""
        self._consumes = False

    @property
    def handled(self) -> list[int]:
        """The numbers of the messages it handled, in order."""
        return [number for (number,) in self.query('SELECT number FROM handled ORDER BY "row"')]


@asynccontextmanager
async def domain_nodes(
    directory: Path, core: str, *satellites: str, store: str = SQLITE, is_cold: bool = False
) -> AsyncIterator[list[DomainNode]]:
    """A core and satellites that run and know each other; killed at the end."""
    with database(store) as dsn:
        centre = DomainNode(core, directory, dsn=dsn, is_cold=is_cold)
        others = [
            DomainNode(name, directory, centre, dsn=dsn, is_cold=is_cold) for name in satellites
        ]
        # The others must be told where it is.
        async with running([centre]), running(others):
            introduce(centre, *others)
            yield [centre, *others]
