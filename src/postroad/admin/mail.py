"""The bridges of a node as a process of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from postroad.core import Address, to_address
from postroad.durable import BridgeManager, store_from_url
from postroad.net import MessagingService, TlsConfig, run

__all__ = ["BridgeSettings", "TlsConfig", "run", "run_bridge"]


class BridgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a bridge process needs to know."""

    cluster: str
    node: str
    """Name of the node whose mail it carries."""
    node_address: str
    store: str
    """A path, or `postgresql://...`."""
    bind: str = "127.0.0.1:0"
    tls: TlsConfig | None = None
    secrets: tuple[str, ...] = ()
    """Of the cluster, the one to use first; none if it has none."""
    take_over: bool = False
    """Whether to go on although another bridge has the store; that one stops then."""


async def run_bridge(settings: BridgeSettings, on_ready: Callable[[Address, int], None]) -> None:
    """Carry the mail of a node until cancelled, or until another bridge takes over.

    Args:
        on_ready: told the address and the token of the bridge.

    Raises:
        FencedError: another bridge has taken over.
        StoreError: the database has another history than this process remembers.
    """
    store = store_from_url(settings.store)
    await store.open(settings.node, role="bridge", force=settings.take_over)
    try:
        service = MessagingService(
            settings.cluster,
            f"{settings.node}.bridge",
            settings.bind,
            tls=settings.tls,
            secret=settings.secrets or None,
        )
        async with service:
            manager = BridgeManager(
                service,
                store,
                store.config,
                node=settings.node,
                node_address=to_address(settings.node_address),
            )
            async with manager:
                on_ready(service.address, manager.token)
                ends = (asyncio.shield(manager.fenced), asyncio.shield(store.ended))
                done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                raise min(done, key=ends.index).result()
    finally:
        await store.close()
