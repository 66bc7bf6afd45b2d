"""Takes what other stores send: checks who they are, stores what is new, and only then answers."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from postroad.core import fault_points as faults
from postroad.core.errors import ConfigError, MalformedPayloadError, UsageError
from postroad.core.log_throttle import ThrottledLogger
from postroad.net import MessagingService, RawMessage

from .chain import CHAIN_BYTES, genesis
from .config import MailConfig
from .exchange import Answer, Offer, Verdict, Window, agree, check_version, decode, encode
from .names import DELIVER, OFFER, node_behind
from .store import Store
from .store import queries as query
from .store.database import Database
from .store.ledger import Ledger, News
from .store.streams import Arrival
from .store.units import Unit, tell

logger = logging.getLogger("postroad.durable")

BEFORE_ACCEPT = faults.declare_fault_point("durable.intake.before_accept")
AFTER_ACCEPT = faults.declare_fault_point("durable.intake.after_accept")

# Stores whose newest bridge is remembered; forgetting them all only weakens an extra check.
_TOKENS_MAX = 4_096
# The shortest letter: an array of an id, a queue name of one character, no body and a time.
_LETTER_BYTES_MIN = 7
_LETTERS_UNCHECKED = 512
_WARN_INTERVAL_S = 60.0


class Acceptance(Unit):
    """A window to be stored; its sender waits for the answer."""

    __slots__ = ("_own_name", "_room", "_sender", "_window", "arrival", "done")

    def __init__(self, sender: str, window: Window, own_name: str, room: int, size: int) -> None:
        super().__init__(size)
        self._sender = sender
        self._window = window
        self._own_name = own_name
        self._room = room
        self.arrival: Arrival
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def apply(self, ledger: Ledger) -> None:
        self.arrival = ledger.streams.accept(
            self._sender, self._window, self._own_name, self._room, ledger.now_ms
        )

    def settle(self, error: Exception | None) -> None:
        tell(self.done, error)


class Intake:
    """The receiving end of every bridge that leads to this node."""

    def __init__(self, service: MessagingService, store: Store, config: MailConfig) -> None:
        self._service = service
        self._store = store
        self._config = config
        self._tokens: dict[tuple[str, bytes, int], int] = {}
        # Bytes that are stored, or about to be.
        self._held: dict[str, int] = {}
        self._held_in_all = 0
        # Bytes of dead letters.
        self._dead: dict[str, int] = {}
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        self._is_listening = False

    async def start(self) -> None:
        """Count what is there, and listen."""
        self._held = await self._store.read(query.sizes_by_sender)
        self._held_in_all = sum(self._held.values())
        self._dead = await self._store.read(query.dead_by_sender)
        try:
            self._service.serve(OFFER, self._on_offer)
        except ConfigError:
            raise UsageError(f"service {self._service.name!r} has mail already") from None
        self._is_listening = True
        self._service.serve(DELIVER, self._on_window)

    def stop(self) -> None:
        """Listen no more."""
        if self._is_listening:
            self._is_listening = False
            self._service.unsubscribe(OFFER)
            self._service.unsubscribe(DELIVER)

    def on_news(self, news: News) -> None:
        """Count what came and what is gone."""
        for sender, size in news.held.items():
            self._count(sender, size)
        for sender, size in news.dead.items():
            self._dead[sender] = self._dead.get(sender, 0) + size

    def blocked(self) -> list[str]:
        """Senders whose mail is not taken, because there are too many dead letters of it."""
        return sorted(sender for sender in self._dead if self._is_blocked(sender))

    def _is_blocked(self, sender: str) -> bool:
        return self._dead.get(sender, 0) >= self._config.sender_dead_bytes_max

    def _count(self, sender: str, size: int) -> None:
        held = self._held.get(sender, 0) + size
        self._held_in_all += size
        if held:
            self._held[sender] = held
        else:
            self._held.pop(sender, None)

    def _room(self, sender: str) -> int:
        """Bytes that this node takes of a sender now."""
        if self._is_blocked(sender):
            self._log.log(
                sender,
                time.monotonic(),
                "mail of %s is not taken: its dead letters have %d bytes, and "
                "sender_dead_bytes_max is %d; retry or drop some (postroad dlq)",
                sender,
                self._dead[sender],
                self._config.sender_dead_bytes_max,
            )
            return 0
        of_sender = self._config.sender_bytes_max - self._held.get(sender, 0)
        return max(min(of_sender, self._config.inbox_bytes_max - self._held_in_all), 0)

    # Messages of bridges.

    async def _on_offer(self, message: RawMessage) -> bytes:
        sender = self._identify(message)
        offer = decode(Offer, message.payload)
        version = agree(offer)
        is_newest = self._is_newest(sender, offer.store, offer.epoch, offer.token)
        answer = await self._store.read(self._answer, sender, offer, is_newest)
        return encode(msgspec.structs.replace(answer, version=version))

    def _answer(self, database: Database, sender: str, offer: Offer, is_newest: bool) -> Answer:
        verdict = Verdict.ACCEPTED if is_newest else Verdict.FENCED
        room = self._room(sender)
        stream = query.find_stream(database, sender, offer.store, offer.epoch)
        if stream is None:
            chain = genesis(offer.store, offer.epoch, self._service.name)
            return Answer(verdict, 0, chain, room, [])
        refusals = query.list_refusals(database, stream.id, offer.settled)
        return Answer(verdict, stream.watermark, stream.chain, room, refusals)

    async def _on_window(self, message: RawMessage) -> bytes:
        sender = self._identify(message)
        window = decode(Window, message.payload)
        check_version(window.version)
        if not self._is_newest(sender, window.store, window.epoch, window.token):
            return encode(Answer(Verdict.FENCED, 0, bytes(CHAIN_BYTES), 0, []))
        _check_counts(window)
        BEFORE_ACCEPT.hit(sender=sender, first=window.first)
        size = len(message.payload)
        unit = Acceptance(sender, window, self._service.name, self._room(sender), size)
        self._store.submit(unit)
        # What is about to be stored takes room already.
        self._count(sender, size)
        try:
            await unit.done
        finally:
            self._count(sender, -size)
        AFTER_ACCEPT.hit(sender=sender, first=window.first)
        arrival = unit.arrival
        if arrival.detail:
            logger.debug("a window of %s was not taken: %s", sender, arrival.detail)
        return encode(
            Answer(
                arrival.verdict,
                arrival.watermark,
                arrival.chain,
                self._room(sender),
                arrival.refusals,
            )
        )

    def _identify(self, message: RawMessage) -> str:
        """The node a message comes from, as its connection proves it."""
        if message.peer is None:
            raise UsageError("mail is taken only over a protocol version that names its sender")
        return node_behind(message.peer)

    def _is_newest(self, sender: str, store: bytes, epoch: int, token: int) -> bool:
        """Whether no later bridge of that store was heard of, since its epoch began."""
        key = (sender, store, epoch)
        newest = self._tokens.get(key, 0)
        if token > newest:
            if len(self._tokens) >= _TOKENS_MAX:
                self._tokens.clear()
            self._tokens[key] = token
        return token >= newest


def _check_counts(window: Window) -> None:
    """Refuse a window that announces more letters than its bytes can hold."""
    for page in window.pages:
        # Of a few letters it does no harm: they are refused one by one.
        if page.letters is None or page.count <= _LETTERS_UNCHECKED:
            continue
        if page.count * _LETTER_BYTES_MIN > len(page.letters):
            raise MalformedPayloadError(f"{page.count} letters in {len(page.letters)} bytes")
