"""Nodes of Postroad with mail, for the benchmarks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from postroad.durable import DurableQueues, DurableQueuesConfig, PeerDirectory, SqliteStore
from postroad.net import MessagingService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CLUSTER, QUEUE = "benchmark", "letters"


@asynccontextmanager
async def mail_node(
    scratch: Path, name: str, directory: PeerDirectory, config: DurableQueuesConfig | None = None
) -> AsyncIterator[DurableQueues]:
    """A node with an empty store."""
    with TemporaryDirectory(dir=scratch) as place:
        async with (
            MessagingService(CLUSTER, name) as service,
            DurableQueues(
                service, SqliteStore(f"{place}/m.db"), directory=directory, config=config
            ) as mail,
        ):
            yield mail
