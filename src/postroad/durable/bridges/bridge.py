"""Delivers the outbox of one peer, and removes what the peer has accepted.

The receiver answers a window when it is committed there (`StreamReceiver`). `Bridge._on_ack` takes
that answer, or the one to the offer after a reconnection, and `OutboxAckMutation` deletes what was
accepted from the outbox, lazily: with the next commit, or a moment later.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from postroad.core import Address
from postroad.core import fault_points as faults
from postroad.core.errors import (
    FencedError,
    MessageTooLargeError,
    PostroadError,
    SenderStateLostError,
    StoreUnavailableError,
    StreamMismatchError,
)
from postroad.core.timing import backoff
from postroad.durable.bridges.control import BridgeStatus
from postroad.durable.bridges.outbox_ack import OutboxAckMutation
from postroad.durable.bridges.protocol import (
    DeadLetterReason,
    MessageRejection,
    StreamAck,
    StreamOpen,
    WindowStatus,
    check_version,
    decode_stream_message,
    encode,
)
from postroad.durable.bridges.send_window import (
    BridgeSendWindow,
    StreamIdentity,
    check_stream_consistency,
    new_rejections,
)
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.names import DELIVER, OFFER
from postroad.durable.store import Store
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.rows import OutboxBatch, PeerState
from postroad.net import MessagingService

logger = logging.getLogger("postroad.durable")

BEFORE_SEND = faults.declare_fault_point("durable.bridge.before_send")
AFTER_SEND = faults.declare_fault_point("durable.bridge.after_send")
ACCEPTED = faults.declare_fault_point("durable.bridge.accepted")

_BATCHES_PER_READ = 8
# Recent batches are sent from memory, up to this many bytes.
_HOT_BYTES_MAX = 1024 * 1024
# After a rejection the stream is opened again from time to time: an operator may have acted.
_MISMATCH_DELAY_S = 60.0


class BridgeState(enum.StrEnum):
    """The state of a bridge."""

    IDLE = "idle"
    OPENING = "opening"
    SENDING = "sending"
    BACKOFF = "backoff"
    MISMATCH = "mismatch"
    PAUSED = "paused"


class Bridge:
    """The bridge from the outbox of this node's store to one peer."""

    def __init__(
        self,
        service: MessagingService,
        store: Store,
        config: DurableQueuesConfig,
        peer: str,
        target: Address,
        token: int,
        on_fenced: Callable[[FencedError], None],
    ) -> None:
        self.peer = peer
        self.target = target
        self.state = BridgeState.IDLE
        self.last_error: str | None = None
        self.sent = 0
        self._service = service
        self._store = store
        self._config = config
        self._token = token
        self._failures = 0
        # Consecutive batches that were not sent yet.
        self._recent: deque[OutboxBatch] = deque()
        self._recent_bytes = 0
        # Whether the store may have more batches to send than these.
        self._may_have_more = True
        self._wake = asyncio.Event()
        self._wake.set()
        self._retry_now = asyncio.Event()
        self._is_stale = False
        self._is_paused = False
        # Whether windows of several batches are too large for the peer's connections.
        self._sends_single_batches = False
        self._on_fenced = on_fenced
        # Number up to which acks are durable here, and the rejections after it.
        self._epoch = self._acked = 0
        self._rejections: list[MessageRejection] = []
        self._windows: deque[asyncio.Task[bytes]] = deque()
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"postroad bridge to {peer}"
        )

    # Events.

    def on_batches(self, batches: Sequence[OutboxBatch]) -> None:
        """Add batches that were just committed."""
        for batch in batches:
            if self._recent and self._recent[-1].last + 1 != batch.first:
                self._clear_recent()
            if self._recent_bytes + batch.size <= _HOT_BYTES_MAX or not self._recent:
                self._recent.append(batch)
                self._recent_bytes += batch.size
            else:
                self._may_have_more = True
        self._wake.set()

    def wake(self) -> None:
        """Send now: there may be messages, or the peer may be back."""
        self._may_have_more = True
        self._wake.set()
        self._retry_now.set()

    def set_target(self, target: Address) -> None:
        """Change the address of the peer."""
        if target != self.target:
            self.target = target
            self._failures = 0
            self._is_stale = True
        self.wake()

    def reload(self) -> None:
        """Read the outbox again, which an operator has changed."""
        self._clear_recent()
        self._is_stale = True
        self.wake()

    def _clear_recent(self) -> None:
        self._recent.clear()
        self._recent_bytes = 0
        self._may_have_more = True

    async def close(self) -> None:
        """Stop; windows in flight may still arrive, and are sent again by the next bridge."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # Running.

    async def _run(self) -> None:
        while True:
            self.state = BridgeState.PAUSED if self._is_paused else BridgeState.IDLE
            await self._wake.wait()
            self._wake.clear()
            self._retry_now.clear()
            try:
                has_more = await self._run_stream()
            except FencedError as error:
                self._log_error(error, logging.ERROR)
                self._on_fenced(error)
                return
            except StreamMismatchError as error:
                self._log_error(error, logging.ERROR)
                self.state = BridgeState.MISMATCH
                await self._pause(_MISMATCH_DELAY_S)
            except PostroadError as error:
                self._log_error(error)
                await self._back_off()
            except Exception:
                logger.exception("bridge to %s failed unexpectedly", self.peer)
                await self._back_off()
            else:
                if not has_more:
                    continue
            finally:
                await self._cancel_windows()
            self._wake.set()

    def _log_error(self, error: Exception, level: int = logging.DEBUG) -> None:
        if str(error) != self.last_error:
            self.last_error = str(error)
            logger.log(level, "bridge to %s: %s", self.peer, error)

    async def _back_off(self) -> None:
        self._failures += 1
        self.state = BridgeState.BACKOFF
        await self._pause(
            backoff(
                self._failures,
                initial_delay_s=self._config.bridge_initial_delay_s,
                max_delay_s=self._config.bridge_max_delay_s,
                jitter=random.random(),
            )
        )

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the peer has changed since the last attempt started."""
        try:
            async with asyncio.timeout(seconds):
                await self._retry_now.wait()
        except TimeoutError:
            return

    async def _cancel_windows(self) -> None:
        """Cancel windows that were not acknowledged."""
        windows, self._windows = self._windows, deque()
        for window in windows:
            window.cancel()
        await asyncio.gather(*windows, return_exceptions=True)

    async def _run_stream(self) -> bool:
        """Open a stream, then send until an error.

        Returns whether there is more to be sent.
        """
        self._is_stale = False
        peer = await self._store.read(query.find_peer, self.peer)
        self._is_paused = peer is not None and peer.is_paused
        if peer is None or self._is_paused or peer.last_seq == peer.acked_seq:
            return False
        self.state = BridgeState.OPENING
        stream = StreamIdentity(
            peer=self.peer, store=self._store.id, epoch=peer.epoch, token=self._token
        )
        ack = await self._open_stream(stream, peer)
        self._epoch, self._acked, self._rejections = peer.epoch, peer.acked_seq, []
        self._submit_ack(stream, ack, peer.acked_seq)
        window = BridgeSendWindow(stream, self._config, ack)
        # Messages that were sent and not accepted are sent again.
        self._may_have_more = True
        while not self._is_stale:
            await self._send_more(window, peer)
            if self._windows and self._windows[0].done():
                if self._on_ack(window, stream):
                    # The peer may have credit now.
                    continue
                if window.is_full:
                    await self._wait_for_credit()
                else:
                    # The peer lost its state of this stream; retry at once, unless that repeats.
                    await self._back_off()
                return True
            if not self._windows and window.available_bytes <= 0:
                await self._wait_for_credit()
                return True
            self.state = BridgeState.SENDING if self._windows else BridgeState.IDLE
            await self._wake.wait()
            self._wake.clear()
        if self.last_error is not None:
            await self._back_off()
        return True

    async def _wait_for_credit(self) -> None:
        self.last_error = f"{self.peer!r} has no credit left"
        await self._back_off()

    async def _open_stream(self, stream: StreamIdentity, peer: PeerState) -> StreamAck:
        offer = StreamOpen(stream.store, stream.epoch, stream.token, peer.acked_seq)
        reply = await self._service.request(
            self.target,
            OFFER,
            encode(offer),
            timeout=self._config.open_timeout_s,
            peer=self.peer,
        )
        ack = decode_stream_message(StreamAck, reply)
        check_version(ack.version)
        self._check_status(ack)
        now, chain = await self._store.read(query.peer_and_chain, self.peer, ack.watermark)
        if now.epoch != peer.epoch:
            raise StoreUnavailableError("a new epoch was started meanwhile")
        check_stream_consistency(now, ack, chain)
        return ack

    def _check_status(self, ack: StreamAck) -> None:
        if ack.status is WindowStatus.FENCED:
            raise SenderStateLostError(
                f"{self.peer!r} has served a later bridge manager of this store: if there is "
                "none, this store is an old copy; decide what to do with the messages that wait, "
                "then start a new epoch"
            )

    async def _send_more(self, window: BridgeSendWindow, peer: PeerState) -> None:
        """Send the windows that the credit allows."""
        while window.available_bytes > 0:
            batches = window.select_batches(await self._next_batches(window, peer))
            if not batches:
                return
            await self._send(window, batches[:1] if self._sends_single_batches else batches)

    async def _next_batches(
        self, window: BridgeSendWindow, peer: PeerState
    ) -> Sequence[OutboxBatch]:
        """Return batches after those that were sent, from memory or from the store."""
        hot = self._recent
        while hot and hot[0].last <= window.sent:
            self._recent_bytes -= hot.popleft().size
        if hot and hot[0].first == window.sent + 1:
            return list(hot)
        if not hot and not self._may_have_more:
            return ()
        # Commits from here on are notified.
        self._may_have_more = False
        epoch, batches = await self._store.read(
            query.read_outbox_batches_of_epoch, peer.id, window.sent, _BATCHES_PER_READ
        )
        if epoch != peer.epoch:
            self.reload()
            return ()
        self._may_have_more |= bool(batches)
        return batches

    async def _send(self, window: BridgeSendWindow, batches: Sequence[OutboxBatch]) -> None:
        BEFORE_SEND.hit(peer=self.peer, first=batches[0].first)
        frame = window.next_window(batches, self._acked, time.time_ns() // 1_000_000)
        payload = encode(frame)
        delivery = asyncio.ensure_future(self._deliver(payload, batches))
        delivery.add_done_callback(self._on_delivery)
        self._windows.append(delivery)
        # Let the task start writing, so that windows stay in order.
        await asyncio.sleep(0)
        AFTER_SEND.hit(peer=self.peer, first=batches[0].first)

    def _on_delivery(self, delivery: asyncio.Future[bytes]) -> None:
        self._wake.set()

    async def _deliver(self, payload: bytes, batches: Sequence[OutboxBatch]) -> bytes:
        try:
            return await self._service.request(
                self.target,
                DELIVER,
                payload,
                timeout=self._config.window_timeout_s,
                peer=self.peer,
            )
        except MessageTooLargeError as error:
            if len(batches) == 1:
                await self._dead_letter_batch(batches[0], error)
            self._sends_single_batches = True
            raise

    async def _dead_letter_batch(self, batch: OutboxBatch, error: MessageTooLargeError) -> None:
        """Dead-letter a batch that is too large for the peer's connections."""
        await self._store.write(
            lambda tables: tables.outbox.dead_letter_batch(
                self.peer, batch, DeadLetterReason.TOO_LARGE, error.detail, tables.now_ms
            )
        )
        self._clear_recent()
        self._failures = 0

    def _on_ack(self, window: BridgeSendWindow, stream: StreamIdentity) -> bool:
        """Handle the ack of the oldest window; False if the stream must be opened again."""
        ack = decode_stream_message(StreamAck, self._windows.popleft().result())
        ACCEPTED.hit(peer=self.peer, watermark=ack.watermark)
        self._check_status(ack)
        before = window.accepted
        can_continue = window.on_ack(ack)
        self._submit_ack(stream, ack, before)
        if ack.watermark > before:
            self._failures = 0
            self.last_error = None
        return can_continue

    def _submit_ack(self, stream: StreamIdentity, ack: StreamAck, before: int) -> None:
        if ack.watermark > before:
            self.sent += ack.watermark - before
            # Includes rejections whose commit is not durable, so that a failed commit loses none.
            self._rejections += new_rejections(ack, before)
            mutation = OutboxAckMutation(stream, ack, tuple(self._rejections), self._on_acked)
            self._store.submit(mutation, lazy=True)

    def _on_acked(self, mutation: OutboxAckMutation, error: Exception | None) -> None:
        """Handle the commit of acks; after a failure a later ack or a new stream repeats them."""
        if mutation.epoch != self._epoch:
            return
        if error is None:
            self._acked = max(self._acked, mutation.acked)
            self._rejections = [
                rejection for rejection in self._rejections if rejection.number > mutation.acked
            ]
        elif isinstance(error, FencedError):
            self._on_fenced(error)
            self._task.cancel()
        else:
            self._log_error(error)
            self._is_stale = True
            self._wake.set()

    def status(self) -> BridgeStatus:
        """Return the status of the bridge."""
        return BridgeStatus(self.peer, str(self.target), self.state, self.sent, self.last_error)
