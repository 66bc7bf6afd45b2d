"""Reading from a store, inside a commit or beside it."""

from __future__ import annotations

import logging

import msgspec

from postroad.core.errors import MalformedPayloadError, StoreCorruptedError
from postroad.durable.bridges.protocol import MessageRejection
from postroad.durable.stored_messages import (
    NEVER_MS,
    StoredMessage,
    decode_batch,
    decode_stored_message,
)

from .database import Database, Row
from .rows import (
    AsideLetter,
    DeadGroup,
    DeadLetter,
    InPage,
    OutPage,
    Peer,
    Stream,
    WaitingLetter,
)
from .seals import unseal

logger = logging.getLogger("postroad.durable")

_PAGES_AT_ONCE = 8

# The pages of a peer have ids between its own times this, and its own plus one times this.
PAGE_SPAN = 2**40
_PAGES_OF_PEER = f"BETWEEN peers.id * {PAGE_SPAN} AND peers.id * {PAGE_SPAN} + {PAGE_SPAN - 1}"
_PEER_COLUMNS = (
    "peers.id, peers.name, peers.epoch, COALESCE(newest.last, peers.settled),"
    " COALESCE(newest.chain, peers.settled_chain), peers.settled, peers.settled_chain,"
    " peers.is_paused"
)
_PEERS = (
    "postroad_peers AS peers LEFT JOIN postroad_outbox AS newest ON newest.id ="
    f" (SELECT MAX(id) FROM postroad_outbox WHERE id {_PAGES_OF_PEER})"
)
_PAGE = "id, last, chain, letters"
_DEAD = "id, is_outbound, peer, queue, reason, detail, failures, died_ms, letter"
_ASIDE = "id, sender, letter, due_ms, holds_key, failures, ahead_ms, received_ms, error"


def find_peer(database: Database, name: str) -> Peer | None:
    """The state of a peer, if anything was ever posted to it."""
    rows = database.execute(f"SELECT {_PEER_COLUMNS} FROM {_PEERS} WHERE name = ?", (name,))
    return _to_peer(rows[0]) if rows else None


def list_peers(database: Database) -> list[Peer]:
    """All peers anything was ever posted to."""
    return [_to_peer(row) for row in database.execute(f"SELECT {_PEER_COLUMNS} FROM {_PEERS}")]


def _to_peer(row: Row) -> Peer:
    id, name, epoch, head, head_chain, settled, settled_chain, is_paused = row
    return Peer(
        id,
        name,
        epoch,
        head,
        bytes(head_chain),
        settled,
        bytes(settled_chain),
        is_paused=bool(is_paused),
    )


def page_id(peer: int, first: int) -> int:
    """The id of the page for a peer that begins with that number."""
    return peer * PAGE_SPAN + first


def _to_page(row: Row) -> OutPage:
    id, last, chain, letters = row
    return OutPage(id % PAGE_SPAN, last, bytes(chain), None if letters is None else bytes(letters))


def read_pages(database: Database, peer: int, after: int, limit: int) -> list[OutPage]:
    """The next pages that wait for a peer, in order."""
    rows = database.execute(
        f"SELECT {_PAGE} FROM postroad_outbox WHERE id > ? AND id < ? ORDER BY id LIMIT ?",
        (page_id(peer, after), page_id(peer + 1, 0), limit),
    )
    return [_to_page(row) for row in rows]


def read_pages_of_epoch(
    database: Database, peer: int, after: int, limit: int
) -> tuple[int | None, list[OutPage]]:
    """The next pages that wait for a peer, and the epoch their numbers are of.

    While the peer is paused there is neither. In one statement, so that both are of one moment.
    """
    rows = database.execute(
        "SELECT CASE peers.is_paused WHEN 0 THEN peers.epoch END,"
        " outbox.id, outbox.last, outbox.chain, outbox.letters"
        " FROM postroad_peers AS peers LEFT JOIN postroad_outbox AS outbox"
        " ON outbox.id > ? AND outbox.id < ? WHERE peers.id = ?"
        " ORDER BY outbox.id LIMIT ?",
        (page_id(peer, after), page_id(peer + 1, 0), peer, limit),
    )
    if rows[0][0] is None:
        return None, []
    return int(rows[0][0]), [_to_page(row[1:]) for row in rows if row[1] is not None]


def page_with(database: Database, peer: int, number: int) -> OutPage | None:
    """The page of the outbox that a message is in."""
    rows = database.execute(
        f"SELECT {_PAGE} FROM postroad_outbox WHERE id > ? AND id <= ? ORDER BY id DESC LIMIT 1",
        (page_id(peer, 0), page_id(peer, number)),
    )
    page = _to_page(rows[0]) if rows else None
    return page if page is not None and page.last >= number else None


def chain_after(database: Database, peer: int, number: int) -> bytes | None:
    """The chain after a message that waits for a peer; None unless it ends a page."""
    rows = database.execute(
        "SELECT last, chain FROM postroad_outbox WHERE id > ? AND id <= ? ORDER BY id DESC LIMIT 1",
        (page_id(peer, 0), page_id(peer, number)),
    )
    return bytes(rows[0][1]) if rows and rows[0][0] == number else None


def peer_and_chain(database: Database, name: str, number: int) -> tuple[Peer, bytes | None]:
    """The state of a peer, and the chain after one message if that ends a page.

    In one statement, so that both are of the same moment.
    """
    rows = database.execute(
        f"SELECT {_PEER_COLUMNS}, page.last, page.chain FROM {_PEERS}"
        " LEFT JOIN postroad_outbox AS page ON page.id = (SELECT MAX(id) FROM postroad_outbox"
        f" WHERE id BETWEEN peers.id * {PAGE_SPAN} AND peers.id * {PAGE_SPAN} + ?)"
        " WHERE peers.name = ?",
        (number, name),
    )
    *columns_of_peer, last, chain = rows[0]
    peer = _to_peer(tuple(columns_of_peer))
    if number == peer.settled:
        return peer, peer.settled_chain
    return peer, bytes(chain) if last == number else None


def count_outbox(database: Database, peer: int) -> int:
    """Messages that wait for a peer, without those of which only the numbers are left."""
    rows = database.execute(
        "SELECT COALESCE(SUM(last - id + ?), 0) FROM postroad_outbox"
        " WHERE id > ? AND id < ? AND letters IS NOT NULL",
        (page_id(peer, 1), page_id(peer, 0), page_id(peer + 1, 0)),
    )
    return int(rows[0][0])


def oldest_for(database: Database, peer: int) -> int | None:
    """When the oldest page that waits for a peer was posted, of those that have letters."""
    rows = database.execute(
        "SELECT posted_ms FROM postroad_outbox WHERE id > ? AND id < ? AND letters IS NOT NULL"
        " ORDER BY id LIMIT 1",
        (page_id(peer, 0), page_id(peer + 1, 0)),
    )
    return int(rows[0][0]) if rows else None


def browse_outbox(database: Database, name: str, limit: int) -> list[StoredMessage]:
    """The first letters that wait for a peer."""
    peer = find_peer(database, name)
    letters: list[StoredMessage] = []
    after = 0
    while peer is not None and len(letters) < limit:
        pages = read_pages(database, peer.id, after, _PAGES_AT_ONCE)
        if not pages:
            break
        after = pages[-1].last
        for page in pages:
            if page.letters is not None:
                letters.extend(decode_batch(page.letters))
    return letters[:limit]


def find_stream(database: Database, sender: str, store: bytes, epoch: int) -> Stream | None:
    """How far a sender's store has been accepted, if it ever sent something."""
    rows = database.execute(
        "SELECT id, watermark, chain FROM postroad_streams"
        " WHERE sender = ? AND store = ? AND epoch = ?",
        (sender, store, epoch),
    )
    return Stream(rows[0][0], rows[0][1], bytes(rows[0][2])) if rows else None


def list_refusals(database: Database, stream: int, after: int) -> list[MessageRejection]:
    """What was refused of a stream and may not be known to its sender."""
    rows = database.execute(
        "SELECT number, reason, detail FROM postroad_refusals"
        " WHERE stream = ? AND number > ? ORDER BY number",
        (stream, after),
    )
    return [MessageRejection(*row) for row in rows]


def list_queues(database: Database) -> dict[str, tuple[int, bool]]:
    """All queues: their numbers, and whether they are paused."""
    rows = database.execute("SELECT name, id, is_paused FROM postroad_queues ORDER BY name")
    return {name: (id, bool(is_paused)) for name, id, is_paused in rows}


def read_inbox(database: Database, queue: str, id: int, after: int, limit: int) -> list[InPage]:
    """The next pages of a queue."""
    rows = database.execute(
        "SELECT id, sender, letters, size, ahead_ms, received_ms, done, pending"
        " FROM postroad_inbox WHERE queue = ? AND id > ? ORDER BY id LIMIT ?",
        (id, after, limit),
    )
    return [_to_in_page(queue, row) for row in rows]


def _to_in_page(queue: str, row: Row) -> InPage:
    """A page as it was stored; one that was damaged stays where it is, and has no letters."""
    id, sender, letters, size, ahead_ms, received_ms, done, pending = row
    page = InPage(id, queue, sender, [], size, ahead_ms, received_ms)
    try:
        page.letters = decode_batch(unseal(bytes(letters)))
        page.done = 0 if done is None else int.from_bytes(done)
        if page.pending != pending:
            raise StoreCorruptedError(
                f"{page.pending} are marked as not handled, and {pending} counted"
            )
    except (StoreCorruptedError, MalformedPayloadError) as error:
        logger.error("page %d of queue %r is damaged and not handled: %s", id, queue, error)
        page.letters, page.done = [], 0
    return page


def read_aside(
    database: Database, queue: str, id: int, now_ms: int, latest_ms: int, limit: int
) -> list[AsideLetter]:
    """Letters set aside that are due, the most urgent first.

    So are retries that are planned for after `latest_ms`.
    """
    rows = database.execute(
        f"SELECT {_ASIDE} FROM postroad_aside WHERE queue = ? AND (due_ms <= ?"
        " OR failures > 0 AND due_ms > ? AND due_ms < ?) ORDER BY priority DESC, id LIMIT ?",
        (id, now_ms, latest_ms, NEVER_MS, limit),
    )
    return [aside for row in rows if (aside := _to_aside(queue, row)) is not None]


def _to_aside(queue: str, row: Row) -> AsideLetter | None:
    id, sender, data, due_ms, holds_key, failures, ahead_ms, received_ms, error = row
    try:
        letter = decode_stored_message(unseal(bytes(data)))
    except (StoreCorruptedError, msgspec.DecodeError) as problem:
        logger.error("letter %d of queue %r is damaged and not handled: %s", id, queue, problem)
        return None
    return AsideLetter(
        id=id,
        queue=queue,
        sender=sender,
        letter=letter,
        due_ms=due_ms,
        holds_key=bool(holds_key),
        failures=failures,
        ahead_ms=ahead_ms,
        received_ms=received_ms,
        error=error,
    )


def browse_queue(database: Database, queue: str, limit: int) -> list[StoredMessage]:
    """The first letters of a queue, those set aside behind the others."""
    return [pending.letter for pending in browse_waiting(database, queue, limit)]


def browse_waiting(database: Database, queue: str, limit: int) -> list[WaitingLetter]:
    """Likewise, with what was tried."""
    id, _ = list_queues(database).get(queue, (0, False))
    letters: list[WaitingLetter] = []
    after = 0
    while len(letters) < limit:
        pages = read_inbox(database, queue, id, after, _PAGES_AT_ONCE)
        if not pages:
            break
        after = pages[-1].id
        for page in pages:
            letters.extend(
                WaitingLetter(letter=letter)
                for index, letter in enumerate(page.letters)
                if not page.done >> index & 1
            )
    if len(letters) < limit:
        aside = read_aside(database, queue, id, NEVER_MS, NEVER_MS, limit - len(letters))
        letters.extend(map(_to_waiting, aside))
    return letters[:limit]


def _to_waiting(aside: AsideLetter) -> WaitingLetter:
    is_held = aside.due_ms >= NEVER_MS
    return WaitingLetter(
        letter=aside.letter,
        failures=aside.failures,
        error=aside.error,
        due_ms=0 if is_held else aside.due_ms,
        is_held=is_held,
    )


def next_due_ms(database: Database, id: int, after_ms: int) -> int | None:
    """When the next letter set aside is due, among those that are not yet."""
    rows = database.execute(
        "SELECT MIN(due_ms) FROM postroad_aside WHERE queue = ? AND due_ms > ? AND due_ms < ?",
        (id, after_ms, NEVER_MS),
    )
    return None if rows[0][0] is None else int(rows[0][0])


def held_keys(database: Database, id: int) -> dict[str, int]:
    """Keys whose letters wait for one that is tried again, and how many do."""
    rows = database.execute(
        "SELECT key, COUNT(*) FROM postroad_aside WHERE queue = ? AND holds_key = 1 GROUP BY key",
        (id,),
    )
    return {key: int(count) for key, count in rows}


def dead_by_sender(database: Database) -> dict[str, int]:
    """Bytes of the dead letters that were received, by who sent them."""
    rows = database.execute(
        "SELECT peer, SUM(LENGTH(letter)) FROM postroad_dead WHERE is_outbound = 0 GROUP BY peer"
    )
    return {sender: int(size) for sender, size in rows}


def count_pending(database: Database, id: int) -> int:
    """Messages in a queue."""
    pages = database.execute(
        "SELECT COALESCE(SUM(pending), 0) FROM postroad_inbox WHERE queue = ?", (id,)
    )
    aside = database.execute("SELECT COUNT(*) FROM postroad_aside WHERE queue = ?", (id,))
    return int(pages[0][0]) + int(aside[0][0])


def oldest_in(database: Database, id: int, now_ms: int) -> int | None:
    """When the oldest page of a queue was received, or a letter that waits for another try.

    Letters that were posted for later do not wait before that.
    """
    rows = database.execute(
        "SELECT received_ms FROM postroad_inbox WHERE queue = ? ORDER BY id LIMIT 1", (id,)
    )
    aside = database.execute(
        "SELECT MIN(received_ms) FROM postroad_aside WHERE queue = ?"
        " AND (failures > 0 OR due_ms <= ? OR due_ms >= ?)",
        (id, now_ms, NEVER_MS),
    )
    moments_ms = [int(moment_ms) for (moment_ms,) in (*rows, *aside) if moment_ms is not None]
    return min(moments_ms, default=None)


def sizes_by_sender(database: Database, id: int | None = None) -> dict[str, int]:
    """Bytes in one queue or all of them, by who sent them."""
    where, queue = ("", ()) if id is None else (" WHERE queue = ?", (id,))
    rows = database.execute(
        "SELECT sender, SUM(size) FROM ("
        f"SELECT sender, size FROM postroad_inbox{where} UNION ALL"
        f" SELECT sender, LENGTH(letter) AS size FROM postroad_aside{where}"
        ") AS held GROUP BY sender",
        (*queue, *queue),
    )
    return {sender: int(size) for sender, size in rows}


def find_dead(database: Database, id: int) -> DeadLetter | None:
    """One dead letter."""
    rows = database.execute(f"SELECT {_DEAD} FROM postroad_dead WHERE id = ?", (id,))
    return _to_dead(rows[0]) if rows else None


def list_dead(
    database: Database, queue: str | None, after: int, limit: int, reason: str | None = None
) -> list[DeadLetter]:
    """Dead letters in the order they died, those after a number."""
    where, parameters = _only(queue, reason)
    rows = database.execute(
        f"SELECT {_DEAD} FROM postroad_dead WHERE id > ?{where} ORDER BY id LIMIT ?",
        (after, *parameters, limit),
    )
    return [_to_dead(row) for row in rows]


def _only(queue: str | None, reason: str | None) -> tuple[str, list[str]]:
    """What dead letters of a queue and a reason have to fulfil besides."""
    conditions = [
        (name, value) for name, value in (("queue", queue), ("reason", reason)) if value is not None
    ]
    return "".join(f" AND {name} = ?" for name, _ in conditions), [value for _, value in conditions]


def group_dead(database: Database) -> list[DeadGroup]:
    """Dead letters by what they have in common, those that are many first."""
    rows = database.execute(
        "SELECT queue, reason, detail, COUNT(*) AS number, MIN(died_ms), MAX(died_ms)"
        " FROM postroad_dead GROUP BY queue, reason, detail"
        " ORDER BY number DESC, queue, reason, detail"
    )
    return [
        DeadGroup(
            queue=queue,
            reason=reason,
            detail=detail,
            count=int(count),
            oldest_ms=oldest_ms,
            newest_ms=newest_ms,
        )
        for queue, reason, detail, count, oldest_ms, newest_ms in rows
    ]


def last_dead(database: Database) -> int:
    """The number of the newest dead letter; 0 if there is none."""
    return int(database.execute("SELECT COALESCE(MAX(id), 0) FROM postroad_dead")[0][0])


def count_dead(database: Database, queue: str | None = None, reason: str | None = None) -> int:
    """How many there are."""
    where, parameters = _only(queue, reason)
    rows = database.execute(f"SELECT COUNT(*) FROM postroad_dead WHERE 1 = 1{where}", parameters)
    return int(rows[0][0])


def _to_dead(row: Row) -> DeadLetter:
    id, is_outbound, peer, queue, reason, detail, failures, died_ms, letter = row
    return DeadLetter(
        id=id,
        is_outbound=bool(is_outbound),
        peer=peer,
        queue=queue,
        reason=reason,
        detail=detail,
        failures=failures,
        died_ms=died_ms,
        letter=decode_stored_message(bytes(letter)),
    )
