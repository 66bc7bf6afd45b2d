"""Retention: flows that have ended are deleted from the store after a time.

That is `retention_s`, or `client_id_retention_s` for flows whose client id was chosen by a program:
generated ones (`schedule:...`, `tx:...`) count as none.
"""

from __future__ import annotations

import functools

from postroad.durable import Store
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows.config import FlowsConfig
from postroad.flows.engine import tables
from postroad.flows.engine.background import now_ms

_PURGE_BATCH = 500


async def purge_expired(store: Store, config: FlowsConfig) -> None:
    """Delete the flows that ended longer ago than the configured retention."""
    for has_client, retention_s in (
        (False, config.retention_s),
        (True, config.client_id_retention_s),
    ):
        before_ms = now_ms() - round(retention_s * 1000)
        while True:
            ids = await store.read(
                tables.list_ended_before, before_ms, _PURGE_BATCH, has_client=has_client
            )
            if ids:
                await store.write(functools.partial(_delete_flows, ids=ids))
            if len(ids) < _PURGE_BATCH:
                break


def _delete_flows(stored: StoreTables, ids: list[int]) -> None:
    for id in ids:
        tables.delete_flow(stored.database, id)
