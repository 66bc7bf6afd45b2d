"""The node's side of the bridge control protocol: which bridges there should be."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable

from postroad.core import Address
from postroad.core.errors import MalformedPayloadError, MessagingError
from postroad.net import MessagingService, RawMessage
from postroad.net.connections.client import PeerIfKnown

from .control import (
    BridgeEntry,
    Create,
    Delete,
    Health,
    HealthCheck,
    Snapshot,
    SnapshotRequest,
    ToBridge,
    decode_for_node,
    encode,
)
from .directory import Directory
from .fencing import find_manager
from .names import BRIDGE_CONTROL, BRIDGE_NOTIFY, BRIDGE_SUFFIX, inbound_queue, outbound_queue
from .store import Store
from .store import queries as query
from .store.ledger import News

logger = logging.getLogger("postroad.durable")

# A bridge in another process hears of new mail at most so often for each peer.
_NUDGE_S = 0.002
_REMIND_S = 10.0


class Liaison:
    """Tells the bridge manager of queues, and hears what it wants.

    Args:
        is_external: whether the manager is a process of its own.
    """

    def __init__(
        self,
        service: MessagingService,
        store: Store,
        directory: Directory,
        *,
        is_external: bool,
    ) -> None:
        self._service = service
        self._store = store
        self._directory = directory
        self._is_external = is_external
        # Where the manager is; one of another process tells it when it asks.
        self._bridge: tuple[str, Address] | None = None
        # Peers with an outbox.
        self._peers: dict[str, None] = {}
        self._created: dict[str, Address] = {}
        self._nudged: dict[str, None] = {}
        self._checks: dict[int, asyncio.Future[Health]] = {}
        self._check_ids = itertools.count(1)
        # What is to be said, the newest about each matter only.
        self._unsent: dict[str, ToBridge] = {}
        self._has_unsent = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._reminder: asyncio.TimerHandle | None = None
        self._stop_listening: Callable[[], None] | None = None

    async def start(self) -> None:
        """Listen to the manager, and to news of peers and mail."""
        if self._is_external:
            # It may be alive, and have no reason to ask again.
            self._bridge = await self._store.read(find_manager)
        else:
            self._bridge = (self._service.name, self._service.address)
        peers = await self._store.read(query.list_peers)
        self._peers = {peer.name: None for peer in peers if peer.head > peer.settled}
        self._service.subscribe(BRIDGE_NOTIFY, self._on_notify)
        self._stop_listening = self._directory.listen(self._on_peer)
        self._store.audience.add(self._on_news)
        loop = asyncio.get_running_loop()
        self._sender = loop.create_task(self._send_all(), name="postroad bridge liaison")
        if self._is_external:
            self._remind()

    async def stop(self) -> None:
        """Say no more."""
        if self._sender is None:
            return
        self._service.unsubscribe(BRIDGE_NOTIFY)
        if self._stop_listening is not None:
            self._stop_listening()
        if self._reminder is not None:
            self._reminder.cancel()
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)
        self._sender = None

    def _remind(self) -> None:
        """Tell a manager in another process everything, now and then: messages may get lost."""
        self._tell(self._snapshot())
        self._reminder = asyncio.get_running_loop().call_later(_REMIND_S, self._remind)

    def nudge(self, peer: str) -> None:
        """Have the manager look at what waits for a peer."""
        if peer in self._created:
            self._create(peer)

    # What happens in the node.

    def _on_news(self, news: News) -> None:
        for peer in dict.fromkeys(peer for peer, _ in news.appended):
            self._peers[peer] = None
            if peer not in self._created:
                self._create(peer)
            elif self._is_external and peer not in self._nudged:
                self._nudged[peer] = None
                asyncio.get_running_loop().call_later(_NUDGE_S, self._nudge, peer)

    def _nudge(self, peer: str) -> None:
        self._nudged.pop(peer, None)
        self._create(peer)

    def _on_peer(self, peer: str, address: Address | None) -> None:
        if peer not in self._peers:
            return
        if address is None:
            if self._created.pop(peer, None) is not None:
                self._tell(Delete(self._service.name, outbound_queue(peer)))
        else:
            self._create(peer)

    def _create(self, peer: str) -> None:
        address = self._directory.find(peer)
        if address is not None and self._sender is not None:
            self._created[peer] = address
            self._tell(Create(self._service.name, _entry(peer, address)))

    # What the manager says.

    def _on_notify(self, message: RawMessage) -> None:
        if message.peer not in (self._service.name, self._service.name + BRIDGE_SUFFIX):
            logger.warning("%s is not this node's bridge, and speaks like it", message.peer)
            return
        try:
            report = decode_for_node(message.payload)
        except MalformedPayloadError as error:
            logger.warning("a message of the bridge is ignored: %s", error)
            return
        if isinstance(report, SnapshotRequest):
            self._bridge = (message.peer, message.sender)
            self._tell(self._snapshot())
        elif (check := self._checks.pop(report.request, None)) is not None and not check.done():
            check.set_result(report)

    def _snapshot(self) -> Snapshot:
        self._created = {
            peer: address
            for peer in self._peers
            if (address := self._directory.find(peer)) is not None
        }
        entries = [_entry(peer, address) for peer, address in self._created.items()]
        return Snapshot(self._service.name, inbound_queue(self._service.name), entries)

    async def health(self, timeout_s: float) -> Health:
        """Ask the manager how its bridges do; raises TimeoutError if it does not answer."""
        request = next(self._check_ids)
        check: asyncio.Future[Health] = asyncio.get_running_loop().create_future()
        self._checks[request] = check
        self._tell(HealthCheck(request))
        try:
            async with asyncio.timeout(timeout_s):
                return await check
        finally:
            self._checks.pop(request, None)

    # Sending.

    def _tell(self, message: ToBridge) -> None:
        if self._bridge is None:
            # Whoever comes asks for everything.
            return
        matter = _matter(message)
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
                # A manager that is not there asks for a snapshot when it comes.
                logger.debug("the bridge manager cannot be told: %s", error)
            except Exception:
                logger.exception("the bridge manager cannot be told")


def _entry(peer: str, address: Address) -> BridgeEntry:
    return BridgeEntry(outbound_queue(peer), str(address), peer)


def _matter(message: ToBridge) -> str:
    """What a message is about: a later one about the same makes an earlier one needless."""
    match message:
        case Create():
            return message.entry.queue
        case Delete():
            return message.queue
        case HealthCheck():
            return f"health check {message.request}"
        case Snapshot():
            return "snapshot"
