"""The node's side of the bridge control protocol: which bridges there should be."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable

from postroad.core import Address
from postroad.core.errors import MalformedPayloadError, MessagingError
from postroad.durable.bridges.bridge_manager import BridgeManager
from postroad.durable.bridges.control import (
    BridgeCommand,
    BridgeCreate,
    BridgeDelete,
    BridgeManagerStatus,
    BridgeRoute,
    BridgeSnapshot,
    BridgeSnapshotRequest,
    BridgeStatusRequest,
    decode_bridge_report,
    encode,
)
from postroad.durable.bridges.fencing import find_manager
from postroad.durable.bridges.peers import PeerDirectory
from postroad.durable.names import (
    BRIDGE_CONTROL,
    BRIDGE_NOTIFY,
    BRIDGE_SUFFIX,
    inbound_queue,
    outbound_queue,
)
from postroad.durable.store import Store
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.store_tables import CommitEvent
from postroad.net import MessagingService, PeerIfKnown, RawMessage

logger = logging.getLogger("postroad.durable")

# A bridge in another process is notified of new messages at most so often for each peer.
_WAKE_DELAY_S = 0.002
_REMIND_S = 10.0


class BridgeController:
    """Controls which bridges exist: one for each peer with messages and a known address.

    Args:
        is_external: whether the manager runs in another process, which is sent control messages.
    """

    def __init__(
        self,
        service: MessagingService,
        store: Store,
        directory: PeerDirectory,
        *,
        is_external: bool,
    ) -> None:
        self._service = service
        self._store = store
        self._directory = directory
        self._is_external = is_external
        # The manager, if it runs in this process.
        self._manager: BridgeManager | None = None
        # The name and address of a manager in another process, once they are known.
        self._bridge: tuple[str, Address] | None = None
        # Peers with an outbox.
        self._peers: dict[str, None] = {}
        self._created: dict[str, Address] = {}
        self._woken: dict[str, None] = {}
        self._status_requests: dict[int, asyncio.Future[BridgeManagerStatus]] = {}
        self._status_request_ids = itertools.count(1)
        # Queued commands, of each kind and peer only the newest.
        self._unsent: dict[str, BridgeCommand] = {}
        self._has_unsent = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._snapshot_timer: asyncio.TimerHandle | None = None
        self._stop_listening: Callable[[], None] | None = None

    async def start(self) -> None:
        """Subscribe to commits, changes of peers, and reports of a manager in another process."""
        if self._is_external:
            # It may be running, and have no reason to request a snapshot.
            self._bridge = await self._store.read(find_manager)
        peers = await self._store.read(query.list_peers)
        self._peers = {peer.name: None for peer in peers if peer.last_seq > peer.acked_seq}
        if self._is_external:
            self._service.subscribe(BRIDGE_NOTIFY, self._on_report)
        self._stop_listening = self._directory.subscribe(self._on_peer)
        self._store.commit_listeners.add(self._on_commit)
        loop = asyncio.get_running_loop()
        self._sender = loop.create_task(self._send_all(), name="postroad bridge liaison")
        if self._is_external:
            self._resend_snapshot()

    async def stop(self) -> None:
        """Stop controlling bridges."""
        if self._sender is None:
            return
        if self._is_external:
            self._service.unsubscribe(BRIDGE_NOTIFY)
        if self._stop_listening is not None:
            self._stop_listening()
        if self._snapshot_timer is not None:
            self._snapshot_timer.cancel()
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)
        self._sender = None

    def attach(self, manager: BridgeManager) -> None:
        """Control the manager of this process from now on, by direct calls."""
        self._manager = manager
        manager.apply(self._snapshot())

    def _resend_snapshot(self) -> None:
        """Send snapshots to a manager in another process periodically: messages may get lost."""
        self._enqueue(self._snapshot())
        self._snapshot_timer = asyncio.get_running_loop().call_later(
            _REMIND_S, self._resend_snapshot
        )

    def wake(self, peer: str) -> None:
        """Wake the bridge to a peer."""
        if peer in self._created:
            self._create(peer)

    # Events of the node.

    def _on_commit(self, event: CommitEvent) -> None:
        for peer in dict.fromkeys(peer for peer, _ in event.outbox_batches):
            self._peers[peer] = None
            if peer not in self._created:
                self._create(peer)
            elif self._is_external and peer not in self._woken:
                self._woken[peer] = None
                asyncio.get_running_loop().call_later(_WAKE_DELAY_S, self._wake, peer)

    def _wake(self, peer: str) -> None:
        self._woken.pop(peer, None)
        self._create(peer)

    def _on_peer(self, peer: str, address: Address | None) -> None:
        if peer not in self._peers:
            return
        if address is None:
            if self._created.pop(peer, None) is not None:
                self._enqueue(BridgeDelete(self._service.name, outbound_queue(peer)))
        else:
            self._create(peer)

    def _create(self, peer: str) -> None:
        address = self._directory.lookup(peer)
        if address is not None and self._sender is not None:
            self._created[peer] = address
            self._enqueue(BridgeCreate(self._service.name, _route(peer, address)))

    # Reports of the manager.

    def _on_report(self, message: RawMessage) -> None:
        if message.peer not in (self._service.name, self._service.name + BRIDGE_SUFFIX):
            logger.warning(
                "bridge report from %r ignored: it is not the bridge of this node", message.peer
            )
            return
        try:
            report = decode_bridge_report(message.payload)
        except MalformedPayloadError as error:
            logger.warning("bridge report ignored: %s", error)
            return
        if isinstance(report, BridgeSnapshotRequest):
            self._bridge = (message.peer, message.sender)
            self._enqueue(self._snapshot())
        elif (
            check := self._status_requests.pop(report.request, None)
        ) is not None and not check.done():
            check.set_result(report)

    def _snapshot(self) -> BridgeSnapshot:
        self._created = {
            peer: address
            for peer in self._peers
            if (address := self._directory.lookup(peer)) is not None
        }
        entries = [_route(peer, address) for peer, address in self._created.items()]
        return BridgeSnapshot(self._service.name, inbound_queue(self._service.name), entries)

    async def status(self, timeout_s: float) -> BridgeManagerStatus:
        """Return the state of all bridges; raises TimeoutError if their process does not reply."""
        if self._manager is not None:
            return self._manager.report()
        request = next(self._status_request_ids)
        check: asyncio.Future[BridgeManagerStatus] = asyncio.get_running_loop().create_future()
        self._status_requests[request] = check
        self._enqueue(BridgeStatusRequest(request))
        try:
            async with asyncio.timeout(timeout_s):
                return await check
        finally:
            self._status_requests.pop(request, None)

    # Sending.

    def _enqueue(self, message: BridgeCommand) -> None:
        if self._manager is not None:
            self._manager.apply(message)
            return
        if self._bridge is None:
            # A manager that starts requests a snapshot.
            return
        matter = _coalescing_key(message)
        self._unsent.pop(matter, None)
        self._unsent[matter] = message
        self._has_unsent.set()

    async def _send_all(self) -> None:
        while True:
            await self._has_unsent.wait()
            if not self._unsent or self._bridge is None:
                self._has_unsent.clear()
                continue
            name, address = self._bridge
            message = self._unsent.pop(next(iter(self._unsent)))
            try:
                await self._service.send(
                    address, BRIDGE_CONTROL, encode(message), peer=PeerIfKnown(name)
                )
            except MessagingError as error:
                # A manager that starts later requests a snapshot.
                logger.debug("cannot notify the bridge manager, retrying: %s", error)
            except Exception:
                logger.exception("cannot notify the bridge manager, retrying")


def _route(peer: str, address: Address) -> BridgeRoute:
    return BridgeRoute(outbound_queue(peer), str(address), peer)


def _coalescing_key(message: BridgeCommand) -> str:
    """Return the key of a command: a later command of this key replaces an earlier one."""
    match message:
        case BridgeCreate():
            return message.route.queue
        case BridgeDelete():
            return message.queue
        case BridgeStatusRequest():
            return f"health check {message.request}"
        case BridgeSnapshot():
            return "snapshot"
