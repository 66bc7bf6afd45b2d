"""Letters, pages and streams as other nodes would have made them, and stores to put them into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from postroad.durable import Letter, MailConfig, Store
from postroad.durable.chain import extend, genesis
from postroad.durable.exchange import SentPage, Window
from postroad.durable.letters import encode_letter, encode_page
from postroad.durable.posting import Clerk, Posting
from postroad.durable.store.ledger import Ledger
from postroad.durable.store.rows import AsideLetter, InPage
from postroad.durable.store.streams import Arrival

OWN = "alpha"
PEER = "beta"
SENDER = "gamma"
QUEUE = "orders"
NOW_MS = 1_700_000_000_000
ROOM = 1 << 40
STORE = b"store of gamma.."


def make_letter(id: int = 1, **fields: Any) -> Letter:
    """A letter; its body is its number unless told otherwise."""
    facts: dict[str, Any] = {"queue": QUEUE, "body": b"%d" % id, "posted_ms": NOW_MS} | fields
    return Letter(id=id, **facts)


def make_letters(count: int, **fields: Any) -> list[Letter]:
    return [make_letter(number, **fields) for number in range(1, count + 1)]


def make_page(letters: list[Letter], id: int = 1, *, done: int = 0, ahead_ms: int = 0) -> InPage:
    """A page of a queue, as a consumer reads it."""
    size = len(encode_page(letters))
    return InPage(id, QUEUE, SENDER, letters, size, ahead_ms, NOW_MS, done)


def make_aside(
    letter: Letter,
    id: int = 0,
    *,
    due_ms: int = NOW_MS,
    holds_key: bool = False,
    failures: int = 0,
    ahead_ms: int = 0,
) -> AsideLetter:
    """A letter that is kept by itself."""
    return AsideLetter(
        id, letter.queue, SENDER, letter, due_ms, holds_key, failures, ahead_ms, NOW_MS
    )


class Correspondent:
    """A sender's store: its pages with their numbers and chain, cut into any windows."""

    def __init__(
        self, pages: Iterable[list[Letter]], *, store: bytes = STORE, epoch: int = 1, to: str = OWN
    ) -> None:
        self.store = store
        self.epoch = epoch
        self.chains = [genesis(store, epoch, to)]
        self.firsts = [1]
        self.pages: list[SentPage] = []
        for letters in pages:
            self.add(letters)

    def add(self, letters: list[Letter]) -> None:
        encoded = encode_page(letters)
        self.chains.append(extend(self.chains[-1], encoded))
        self.firsts.append(self.firsts[-1] + len(letters))
        self.pages.append(SentPage(len(letters), self.chains[-1], encoded))

    @property
    def head(self) -> int:
        """Number of the last letter."""
        return self.firsts[-1] - 1

    def window(
        self, start: int = 0, stop: int | None = None, *, settled: int = 0, now_ms: int = NOW_MS
    ) -> Window:
        """The pages from one index to another."""
        return Window(
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
    store: Store, owner: str = OWN, config: MailConfig | None = None, role: str = "node"
) -> AsyncIterator[Store]:
    """An open store, closed at the end."""
    await store.open(owner, config, role=role)
    try:
        yield store
    finally:
        async with asyncio.timeout(10):
            await store.close()


_clerk = Clerk(MailConfig(message_bytes_max=1 << 30))


def posting_of(peer: str, *bodies: bytes, queue: str = QUEUE, **fields: Any) -> Posting:
    """A unit that posts messages, all of them or none."""
    posts = [_clerk.post(peer, queue, body, **fields) for body in bodies]
    return Posting(posts, asyncio.get_running_loop().create_future())


async def post(store: Store, peer: str, *bodies: bytes, **fields: Any) -> list[int]:
    """Post messages in one commit; their ids."""
    posting = posting_of(peer, *bodies, **fields)
    store.submit(posting)
    await posting.done
    return list(posting.ids)


async def put(store: Store, *letters: Letter, sender: str = SENDER) -> None:
    """Put letters into queues as if they had come from a sender in one page."""

    def write(ledger: Ledger) -> None:
        ledger.queues.store_letters(sender, letters, 0, NOW_MS)

    await store.write(write)


async def accept(
    store: Store, window: Window, *, room: int = ROOM, sender: str = SENDER
) -> Arrival:
    """Have a store take a window."""
    return await store.write(
        lambda ledger: ledger.streams.accept(sender, window, OWN, room, NOW_MS)
    )


def encoded(body: bytes) -> bytes:
    """A letter with that body, for what is appended without a clerk."""
    return encode_letter(make_letter(body=body))


def once(action: Callable[[], object]) -> Callable[..., None]:
    """An action of a fault point that happens the first time only."""
    left = [action]

    def act(**details: object) -> None:
        if left:
            left.pop()()

    return act


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act
