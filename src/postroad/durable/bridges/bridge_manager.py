"""The bridge manager: creates and ends bridges by commands of the node.

It runs inside the node, or as a process of its own on the same store. A token, taken from the
store at its start, makes sure that of two managers only the later one commits acks.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from postroad.core import Address, Lifecycle, to_address
from postroad.core.errors import (
    ConfigError,
    FencedError,
    MalformedPayloadError,
    MessagingError,
    StoreError,
)
from postroad.durable.bridges.bridge import Bridge
from postroad.durable.bridges.control import (
    BridgeCommand,
    BridgeCreate,
    BridgeDelete,
    BridgeManagerStatus,
    BridgeRoute,
    BridgeSnapshot,
    BridgeSnapshotRequest,
    BridgeStatus,
    BridgeStatusRequest,
    decode_bridge_command,
    encode,
)
from postroad.durable.bridges.fencing import acquire_fencing_token, check_fencing_token
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.names import BRIDGE_CONTROL, BRIDGE_NOTIFY, peer_of
from postroad.durable.store import Store
from postroad.durable.store.tables.rows import OutboxBatch
from postroad.durable.store.tables.store_tables import CommitEvent
from postroad.net import MessagingService, PeerIfKnown, RawMessage

logger = logging.getLogger("postroad.durable")

_REQUEST_INTERVAL_S = 1.0
_POLL_INTERVAL_S = 5.0


class BridgeManager(Lifecycle):
    """Runs the bridges of one store.

    Args:
        service: sends to the peers; its own node, or the bridge process of that node.
        store: the open store of the node, in the role of the bridge.
        node: name of the node.
        node_address: address of the node, if it is another process, which control messages
            connect with this one; None in the node itself, which calls `apply`.
    """

    def __init__(
        self,
        service: MessagingService,
        store: Store,
        config: DurableQueuesConfig,
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
        self._background: dict[asyncio.Task[None], None] = {}
        self._is_introduced = asyncio.Event()
        self._monitor_task: asyncio.Task[None] | None = None
        self.token = 0
        # Resolved when another manager has taken over.
        self.fenced: asyncio.Future[FencedError] = asyncio.get_running_loop().create_future()

    @property
    def name(self) -> str:
        """The name of this manager: its service and its fencing token."""
        return f"{self._service.name}#{self.token}"

    async def start(self) -> None:
        """Take over the store, and request the routes of the node."""
        service = self._service
        self.token = await self._store.write(
            lambda tables: acquire_fencing_token(tables, service.name, service.address)
        )
        self._store.commit_listeners.add(self._on_commit)
        if self._node_address is not None:
            self._service.subscribe(BRIDGE_CONTROL, self._on_control)
        loop = asyncio.get_running_loop()
        self._monitor_task = loop.create_task(self._monitor(), name="postroad bridge manager")

    async def stop(self) -> None:
        """End all bridges; their messages wait."""
        if self._monitor_task is None:
            return
        if self._node_address is not None:
            self._service.unsubscribe(BRIDGE_CONTROL)
        self._monitor_task.cancel()
        await asyncio.gather(self._monitor_task, return_exceptions=True)
        self._monitor_task = None
        bridges, self._bridges = self._bridges, {}
        await asyncio.gather(*(bridge.close() for bridge in bridges.values()), *self._background)

    async def _monitor(self) -> None:
        """Request the routes of a node in another process, then poll for another manager."""
        if self._node_address is not None:
            await self._request_snapshot(self._node_address)
        while not self.fenced.done():
            await asyncio.sleep(_POLL_INTERVAL_S)
            try:
                await self._store.read(check_fencing_token, self.token)
            except FencedError as error:
                self._on_fenced(error)
            except StoreError as error:
                logger.debug("bridge manager: cannot read the store, retrying: %s", error)
            except Exception:
                logger.exception("bridge manager: cannot read the store, retrying")

    async def _request_snapshot(self, address: Address) -> None:
        """Request a snapshot until the node sends one."""
        request = encode(BridgeSnapshotRequest(self.name))
        while not self._is_introduced.is_set():
            await self._send_to_node(address, request)
            try:
                async with asyncio.timeout(_REQUEST_INTERVAL_S):
                    await self._is_introduced.wait()
            except TimeoutError:
                continue

    async def _send_to_node(self, address: Address, payload: bytes) -> None:
        try:
            await self._service.send(address, BRIDGE_NOTIFY, payload, peer=PeerIfKnown(self._node))
        except MessagingError as error:
            logger.debug("bridge manager: cannot reach its node, retrying: %s", error)

    # Commands of the node.

    def _on_control(self, message: RawMessage) -> None:
        if message.peer != self._node:
            logger.warning(
                "bridge command from %r ignored: this manager runs the bridges of %r",
                message.peer,
                self._node,
            )
            return
        try:
            self.apply(decode_bridge_command(message.payload))
        except (ConfigError, MalformedPayloadError) as error:
            logger.warning("bridge command of %r ignored: %s", message.peer, error)

    def apply(self, command: BridgeCommand) -> None:
        """Execute a command of the node."""
        match command:
            case BridgeSnapshot():
                self._on_snapshot(command)
            case BridgeCreate():
                self.create(command.route)
            case BridgeDelete():
                self.delete(peer_of(command.queue))
            case BridgeStatusRequest():
                self._on_status_request(command)

    def _on_snapshot(self, snapshot: BridgeSnapshot) -> None:
        self._is_introduced.set()
        peers = {peer_of(entry.queue) for entry in snapshot.routes}
        for peer in [peer for peer in self._bridges if peer not in peers]:
            self.delete(peer)
        for entry in snapshot.routes:
            self.create(entry)

    def create(self, entry: BridgeRoute) -> None:
        """Create a bridge, or wake it because of new messages or a new address."""
        peer, target = peer_of(entry.queue), to_address(entry.target)
        bridge = self._bridges.get(peer)
        if self.fenced.done():
            return
        if bridge is not None:
            bridge.set_target(target)
            return
        self._bridges[peer] = Bridge(
            self._service, self._store, self._config, peer, target, self.token, self._on_fenced
        )

    def delete(self, peer: str) -> None:
        """End a bridge."""
        bridge = self._bridges.pop(peer, None)
        if bridge is not None:
            closing = asyncio.get_running_loop().create_task(bridge.close())
            self._background[closing] = None
            closing.add_done_callback(lambda done: self._background.pop(done, None))

    def _on_status_request(self, request: BridgeStatusRequest) -> None:
        assert self._node_address is not None
        report = msgspec.structs.replace(self.report(), request=request.request)
        sending = asyncio.get_running_loop().create_task(
            self._send_to_node(self._node_address, encode(report))
        )
        self._background[sending] = None
        sending.add_done_callback(lambda done: self._background.pop(done, None))

    def report(self) -> BridgeManagerStatus:
        """Return the state of this manager and its bridges."""
        return BridgeManagerStatus(0, self.name, self.token, self.status())

    # Events of the store, when this process writes it.

    def _on_commit(self, event: CommitEvent) -> None:
        by_peer: dict[str, list[OutboxBatch]] = {}
        for peer, batch in event.outbox_batches:
            by_peer.setdefault(peer, []).append(batch)
        for peer, batches in by_peer.items():
            bridge = self._bridges.get(peer)
            if bridge is not None:
                bridge.on_batches(batches)

    def reload(self, peer: str) -> None:
        """Reload the bridge to a peer after an operator has changed its outbox."""
        bridge = self._bridges.get(peer)
        if bridge is not None:
            bridge.reload()

    def status(self) -> list[BridgeStatus]:
        """Return the status of each bridge."""
        return [bridge.status() for bridge in self._bridges.values()]

    def _on_fenced(self, error: FencedError) -> None:
        if not self.fenced.done():
            logger.error("bridge manager %s stopped: %s", self.name, error)
            self.fenced.set_result(error)
            for peer in list(self._bridges):
                self.delete(peer)
