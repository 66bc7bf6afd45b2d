"""The office of a node that does not run, made from its store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.admin.flows import changing_flows, reading_flows
from postroad.durable import DurableQueuesAdmin

from .office import StoreOffice


@asynccontextmanager
async def at_rest(location: str, *, can_change: bool) -> AsyncIterator[StoreOffice]:
    """Work on a store at a path, or at `postgresql://...`.

    Args:
        can_change: False to look only, which is possible while a node works on the store.

    Raises:
        StoreLockedError: something is to be changed, and a node works on the store.
    """
    opened = changing_flows(location) if can_change else reading_flows(location)
    async with opened as flows:
        yield StoreOffice(DurableQueuesAdmin(flows.store), flows)
