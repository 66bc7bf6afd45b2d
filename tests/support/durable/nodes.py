"""Letters, pages and streams as other nodes would have made them, and stores to put them into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from postroad.durable import DurableQueuesConfig, Store, StoredMessage
from postroad.durable.bridges.protocol import StreamWindow, WireBatch, extend_chain, initial_chain
from postroad.durable.producer import EncodedMessage, MessageEncoder, OutgoingMessage, SendMutation
from postroad.durable.store.tables.rows import DeferredMessage, InboxBatch
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.durable.store.tables.streams import WindowResult
from postroad.durable.stored_messages import encode_batch, encode_stored_message

OWN = "alpha"
PEER = "beta"
SENDER = "gamma"
QUEUE = "orders"
NOW_MS = 1_700_000_000_000
ROOM = 1 << 40
STORE = b"store of gamma.."


def make_letter(id: int = 1, **fields: Any) -> StoredMessage:
    """A letter; its body is its number unless told otherwise."""
    facts: dict[str, Any] = {"queue": QUEUE, "body": b"%d" % id, "sent_ms": NOW_MS} | fields
    return StoredMessage(id=id, **facts)


def make_letters(count: int, **fields: Any) -> list[StoredMessage]:
    return [make_letter(number, **fields) for number in range(1, count + 1)]


def make_page(
    letters: list[StoredMessage], id: int = 1, *, done: int = 0, ahead_ms: int = 0
) -> InboxBatch:
    """A page of a queue, as a consumer reads it."""
    size = len(encode_batch(letters))
    return InboxBatch(id, QUEUE, SENDER, letters, size, ahead_ms, NOW_MS, done)


def make_aside(
    letter: StoredMessage,
    id: int = 0,
    *,
    due_ms: int = NOW_MS,
    holds_key: bool = False,
    failures: int = 0,
    ahead_ms: int = 0,
) -> DeferredMessage:
    """A letter that is kept by itself."""
    return DeferredMessage(
        id, letter.queue, SENDER, letter, due_ms, holds_key, failures, ahead_ms, NOW_MS
    )


class Correspondent:
    """A sender's store: its pages with their numbers and chain, cut into any windows."""

    def __init__(
        self,
        pages: Iterable[list[StoredMessage]],
        *,
        store: bytes = STORE,
        epoch: int = 1,
        to: str = OWN,
    ) -> None:
        self.store = store
        self.epoch = epoch
        self.chains = [initial_chain(store, epoch, to)]
        self.firsts = [1]
        self.pages: list[WireBatch] = []
        for letters in pages:
            self.add(letters)

    def add(self, letters: list[StoredMessage]) -> None:
        encoded = encode_batch(letters)
        self.chains.append(extend_chain(self.chains[-1], encoded))
        self.firsts.append(self.firsts[-1] + len(letters))
        self.pages.append(WireBatch(len(letters), self.chains[-1], encoded))

    @property
    def head(self) -> int:
        """Number of the last letter."""
        return self.firsts[-1] - 1

    def window(
        self, start: int = 0, stop: int | None = None, *, settled: int = 0, now_ms: int = NOW_MS
    ) -> StreamWindow:
        """The pages from one index to another."""
        return StreamWindow(
            self.store,
            self.epoch,
            1,
            settled,
            now_ms,
            self.firsts[start],
            self.chains[start],
            self.pages[start:stop],
        )


@asynccontextmanager
async def opened(
    store: Store, owner: str = OWN, config: DurableQueuesConfig | None = None, role: str = "node"
) -> AsyncIterator[Store]:
    """An open store, closed at the end."""
    await store.open(owner, config, role=role)
    try:
        yield store
    finally:
        async with asyncio.timeout(10):
            await store.close()


def encode(
    clerk: MessageEncoder, peer: str, queue: str, body: bytes, **fields: Any
) -> EncodedMessage:
    """Encode a message to a peer."""
    return clerk.encode(OutgoingMessage(queue=queue, body=body, to=peer, **fields))


_clerk = MessageEncoder(DurableQueuesConfig(message_bytes_max=1 << 30), OWN)


def posting_of(peer: str, *bodies: bytes, queue: str = QUEUE, **fields: Any) -> SendMutation:
    """A unit that posts messages, all of them or none."""
    posts = [encode(_clerk, peer, queue, body, **fields) for body in bodies]
    return SendMutation(posts, asyncio.get_running_loop().create_future())


async def post(store: Store, peer: str, *bodies: bytes, **fields: Any) -> list[int]:
    """Post messages in one commit; their ids."""
    posting = posting_of(peer, *bodies, **fields)
    store.submit(posting)
    await posting.done
    return list(posting.ids)


async def put(store: Store, *letters: StoredMessage, sender: str = SENDER) -> None:
    """Put letters into queues as if they had come from a sender in one page."""

    def write(ledger: StoreTables) -> None:
        ledger.queues.store_messages(sender, letters, 0, NOW_MS)

    await store.write(write)


async def accept(
    store: Store, window: StreamWindow, *, room: int = ROOM, sender: str = SENDER
) -> WindowResult:
    """Have a store take a window."""
    return await store.write(
        lambda ledger: ledger.streams.accept(sender, window, OWN, room, NOW_MS)
    )


def encoded(body: bytes) -> bytes:
    """A letter with that body, for what is appended without a clerk."""
    return encode_stored_message(make_letter(body=body))


def once(action: Callable[[], object]) -> Callable[..., None]:
    """An action of a fault point that happens the first time only."""
    pending = [action]

    def act(**details: object) -> None:
        if pending:
            pending.pop()()

    return act


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act
