"""The bridge manager: makes and ends bridges as the node's messages say.

It runs inside the node, or as a process of its own on the same store. A token, taken from the
store at its start, makes sure that of two managers only the later one removes anything.
"""

from __future__ import annotations

import asyncio
import logging

from postroad.core import Address, Lifecycle, to_address
from postroad.core.errors import (
    ConfigError,
    FencedError,
    MalformedPayloadError,
    MessagingError,
    StoreError,
)
from postroad.net import MessagingService, RawMessage
from postroad.net.connections.client import PeerIfKnown

from .bridge import Bridge
from .config import MailConfig
from .control import (
    BridgeEntry,
    BridgeHealth,
    Create,
    Delete,
    Health,
    HealthCheck,
    Snapshot,
    SnapshotRequest,
    decode_for_bridge,
    encode,
)
from .fencing import check_token, take_token
from .names import BRIDGE_CONTROL, BRIDGE_NOTIFY, peer_of
from .store import Store
from .store.ledger import News
from .store.rows import OutPage

logger = logging.getLogger("postroad.durable")

_ASK_AGAIN_S = 1.0
_LOOK_S = 5.0


class BridgeManager(Lifecycle):
    """Runs the bridges of one store.

    Args:
        service: sends to the peers; its own node, or the bridge process of that node.
        store: the open store of the node, in the role of the bridge.
        node: name of the node.
        node_address: where the node is; asked for its queues until it answers.
    """

    def __init__(
        self,
        service: MessagingService,
        store: Store,
        config: MailConfig,
        *,
        node: str,
        node_address: Address | None = None,
    ) -> None:
        self._service = service
        self._store = store
        self._config = config
        self._node = node
        self._node_address = node_address
        self._bridges: dict[str, Bridge] = {}
        self._closing: dict[asyncio.Task[None], None] = {}
        self._is_introduced = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self.token = 0
        # Resolved when another manager has taken over.
        self.fenced: asyncio.Future[FencedError] = asyncio.get_running_loop().create_future()

    @property
    def name(self) -> str:
        """What tells this manager from others of the same store."""
        return f"{self._service.name}#{self.token}"

    async def start(self) -> None:
        """Take over the store, and ask the node for its queues."""
        service = self._service
        self.token = await self._store.write(
            lambda ledger: take_token(ledger, service.name, service.address)
        )
        self._store.audience.add(self._on_news)
        self._service.subscribe(BRIDGE_CONTROL, self._on_control)
        loop = asyncio.get_running_loop()
        self._asking = loop.create_task(self._watch(), name="postroad bridge manager")

    async def stop(self) -> None:
        """End all bridges; their mail waits."""
        if self._asking is None:
            return
        self._service.unsubscribe(BRIDGE_CONTROL)
        self._asking.cancel()
        await asyncio.gather(self._asking, return_exceptions=True)
        self._asking = None
        bridges, self._bridges = self._bridges, {}
        await asyncio.gather(*(bridge.close() for bridge in bridges.values()), *self._closing)

    async def _watch(self) -> None:
        """Ask the node for its queues, then see from time to time whether another took over."""
        await self._ask()
        while not self.fenced.done():
            await asyncio.sleep(_LOOK_S)
            try:
                await self._store.read(check_token, self.token)
            except FencedError as error:
                self._on_fenced(error)
            except StoreError as error:
                logger.debug("the bridge manager cannot read its store: %s", error)
            except Exception:
                logger.exception("the bridge manager cannot read its store")

    async def _ask(self) -> None:
        """Ask the node for a snapshot until it sends one."""
        request = encode(SnapshotRequest(self.name))
        while not self._is_introduced.is_set():
            await self._tell_node(request)
            try:
                async with asyncio.timeout(_ASK_AGAIN_S):
                    await self._is_introduced.wait()
            except TimeoutError:
                continue

    async def _tell_node(self, payload: bytes) -> None:
        address = self._node_address or self._service.address
        try:
            await self._service.send(address, BRIDGE_NOTIFY, payload, peer=PeerIfKnown(self._node))
        except MessagingError as error:
            logger.debug("the bridge manager cannot reach its node: %s", error)

    # What the node says.

    def _on_control(self, message: RawMessage) -> None:
        if message.peer != self._node:
            logger.warning("%s is not this store's node, and tells its bridge", message.peer)
            return
        try:
            command = decode_for_bridge(message.payload)
            match command:
                case Snapshot():
                    self._on_snapshot(command)
                case Create():
                    self.create(command.entry)
                case Delete():
                    self.delete(peer_of(command.queue))
                case HealthCheck():
                    self._on_health_check(command)
        except (ConfigError, MalformedPayloadError) as error:
            logger.warning("the bridge manager ignores a message: %s", error)

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self._is_introduced.set()
        wanted = {peer_of(entry.queue) for entry in snapshot.entries}
        for peer in [peer for peer in self._bridges if peer not in wanted]:
            self.delete(peer)
        for entry in snapshot.entries:
            self.create(entry)

    def create(self, entry: BridgeEntry) -> None:
        """Make a bridge, or tell one that there is mail or that its peer has moved."""
        peer, target = peer_of(entry.queue), to_address(entry.target)
        bridge = self._bridges.get(peer)
        if self.fenced.done():
            return
        if bridge is not None:
            bridge.move(target)
            return
        self._bridges[peer] = Bridge(
            self._service, self._store, self._config, peer, target, self.token, self._on_fenced
        )

    def delete(self, peer: str) -> None:
        """End a bridge."""
        bridge = self._bridges.pop(peer, None)
        if bridge is not None:
            closing = asyncio.get_running_loop().create_task(bridge.close())
            self._closing[closing] = None
            closing.add_done_callback(lambda done: self._closing.pop(done, None))

    def _on_health_check(self, check: HealthCheck) -> None:
        health = encode(Health(check.request, self.name, self.token, self.health()))
        telling = asyncio.get_running_loop().create_task(self._tell_node(health))
        self._closing[telling] = None
        telling.add_done_callback(lambda done: self._closing.pop(done, None))

    # What the store says, when it is written by this process.

    def _on_news(self, news: News) -> None:
        by_peer: dict[str, list[OutPage]] = {}
        for peer, page in news.appended:
            by_peer.setdefault(peer, []).append(page)
        for peer, pages in by_peer.items():
            bridge = self._bridges.get(peer)
            if bridge is not None:
                bridge.on_pages(pages)

    def forget(self, peer: str) -> None:
        """What waits for a peer was changed by an operator."""
        bridge = self._bridges.get(peer)
        if bridge is not None:
            bridge.forget()

    def health(self) -> list[BridgeHealth]:
        """How each bridge does."""
        return [bridge.health() for bridge in self._bridges.values()]

    def _on_fenced(self, error: FencedError) -> None:
        if not self.fenced.done():
            logger.error("%s carries no more mail: %s", self.name, error)
            self.fenced.set_result(error)
            for peer in list(self._bridges):
                self.delete(peer)
