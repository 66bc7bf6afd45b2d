"""From a call of `post` to a letter in the outbox."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from postroad.core import tracing, validate_node_name
from postroad.core.errors import ConfigError, MessageTooLargeError, OutboxFullError, UsageError

from .config import MailConfig
from .letters import PRIORITY_MAX, Letter, encode_letter
from .names import validate_key, validate_queue_name
from .store.ledger import Ledger
from .store.outbox import Idempotence
from .store.units import Unit, tell
from .store.writer import Writer
from .traces import posting

# Names that were found valid; forgetting them all at this size keeps the table bounded.
_NAMES_MAX = 4_096


_encode = msgspec.msgpack.Encoder().encode


class Post(msgspec.Struct, frozen=True, gc=False):
    """A letter on its way into the outbox."""

    peer: str
    id: int
    encoded: bytes
    idempotence: Idempotence | None = None


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be posted among others; the fields are the arguments of `post`."""

    peer: str
    queue: str
    body: bytes
    key: str | None = None
    idempotency_key: str | None = None
    delay: float | None = None
    ttl: float | None = None
    priority: int = 0
    headers: Mapping[str, str] | None = None
    reply_to: str | None = None


class Clerk:
    """Makes letters: checks what is posted, and gives it an id."""

    def __init__(self, config: MailConfig, node: str = "") -> None:
        self.node = node
        self._bytes_max = config.message_bytes_max
        # Unlike those of any other process, also of this node.
        self._next_id = itertools.count(secrets.randbits(31) << 32).__next__
        self._known: set[tuple[str, str]] = set()

    def post(
        self,
        peer: str,
        queue: str,
        body: bytes,
        key: str | None = None,
        idempotency_key: str | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        reply_to: str | None = None,
        answers: int | None = None,
    ) -> Post:
        """A letter of these facts, or an error that names what is wrong with them."""
        if (peer, queue) not in self._known:
            self._check_names(peer, queue)
        if type(body) is not bytes:
            body = to_bytes(body)
        if key is not None:
            validate_key(key)
        if reply_to is not None:
            validate_queue_name(reply_to)
        now_ms = time.time_ns() // 1_000_000
        id = self._next_id()
        letter = Letter(
            id,
            queue,
            body,
            now_ms,
            key,
            None if headers is None else _check_headers(headers),
            _check_priority(priority),
            0 if delay is None else now_ms + _to_ms("delay", delay),
            0 if ttl is None else now_ms + _to_ms("ttl", ttl),
            reply_to,
            answers,
        )
        try:
            encoded = encode_letter(letter)
        except UnicodeEncodeError as error:
            raise UsageError(f"a header cannot be encoded as UTF-8: {error}") from None
        if len(encoded) > self._bytes_max and tracing.tracer is not None:
            encoded = _encode_untraced(letter)
        if len(encoded) > self._bytes_max:
            raise self._too_large(encoded)
        if idempotency_key is None:
            return Post(peer, id, encoded)
        return Post(peer, id, encoded, _identify(idempotency_key, letter))

    def plain(self, peer: str, queue: str, body: bytes) -> Post:
        """The same for a message without anything special, which most are."""
        if (peer, queue) not in self._known:
            self._check_names(peer, queue)
        if type(body) is not bytes:
            body = to_bytes(body)
        id = self._next_id()
        # What is left out has its default.
        encoded = _encode((id, queue, body, time.time_ns() // 1_000_000))
        if len(encoded) > self._bytes_max:
            raise self._too_large(encoded)
        return Post(peer, id, encoded)

    def _too_large(self, encoded: bytes) -> MessageTooLargeError:
        return MessageTooLargeError(
            f"the message takes {len(encoded)} bytes; message_bytes_max is {self._bytes_max}"
        )

    def draft(self, draft: Draft) -> Post:
        """The letter of a draft."""
        fields = {name: getattr(draft, name) for name in draft.__struct_fields__}
        if tracing.tracer is not None:
            fields["headers"] = self.traced(draft.peer, draft.queue, draft.headers)
        return self.post(**fields)

    def traced(
        self, peer: str, queue: str, headers: Mapping[str, str] | None
    ) -> Mapping[str, str] | None:
        """Headers of a message that is posted with something else, and so is a span of its own."""
        if tracing.tracer is None:
            return headers
        span = posting(self.node, peer, queue, headers)
        span.end()
        return tracing.inject_context(headers, span.context)

    def _check_names(self, peer: str, queue: str) -> None:
        validate_node_name(peer)
        validate_queue_name(queue)
        if len(self._known) >= _NAMES_MAX:
            self._known.clear()
        self._known.add((peer, queue))


def to_bytes(body: object) -> bytes:
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise UsageError(f"a body is bytes, not {type(body).__name__}; encode it first")


def _encode_untraced(letter: Letter) -> bytes:
    """A letter without its span, as short as can be: nothing is too large for being traced."""
    bare = msgspec.structs.replace(letter, headers=tracing.remove_context(letter.headers))
    fields = [*msgspec.structs.astuple(bare)]
    for default in reversed(Letter.__struct_defaults__):
        if fields[-1] != default:
            break
        # What is left out has its default.
        fields.pop()
    return _encode(fields)


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    try:
        return msgspec.convert(headers, dict[str, str])
    except msgspec.ValidationError as error:
        raise UsageError(f"headers are texts with names: {error}") from None


def _check_priority(priority: int) -> int:
    if type(priority) is not int:
        raise UsageError(f"a priority is a whole number, not {priority!r}")
    if not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        raise ConfigError(f"priority {priority} is not between -{PRIORITY_MAX} and {PRIORITY_MAX}")
    return priority


def _to_ms(name: str, seconds: float) -> int:
    # A century is longer than any store lives, and any more would not fit its columns.
    if not 0 <= seconds <= 100 * 365 * 86_400:
        raise ConfigError(f"{name}={seconds!r} must be a number of seconds, 0 or more")
    return max(round(seconds * 1000), 1)


def _identify(key: str, letter: Letter) -> Idempotence:
    """What makes another message under the same key another one: all but when it was posted.

    Who posts it again does so in another span.
    """
    headers = letter.headers and tracing.remove_context(letter.headers)
    fixed = (letter.queue, letter.body, letter.key, headers, letter.priority)
    digest = hashlib.blake2b(msgspec.msgpack.encode(fixed), digest_size=16).digest()
    return Idempotence(validate_key(key), digest)


# Inside a commit.


def check_posts(ledger: Ledger, posts: Sequence[Post]) -> list[int | None]:
    """For each post the id of the one before with the same idempotency key, if there was one.

    Raises:
        SendRejectedError: they cannot be taken; nothing was changed.
    """
    counts: dict[str, int] = {}
    earlier: list[int | None] = []
    here: dict[tuple[str, str], Post] = {}
    for post in posts:
        found = None if post.idempotence is None else _find_earlier(ledger, post, here)
        earlier.append(found)
        if found is None and post.peer != ledger.owner:
            counts[post.peer] = counts.get(post.peer, 0) + 1
    for peer, count in counts.items():
        ledger.outbox.check_room(peer, count)
    return earlier


def _find_earlier(ledger: Ledger, post: Post, here: dict[tuple[str, str], Post]) -> int | None:
    assert post.idempotence is not None
    found = ledger.outbox.find_posted(post.peer, post.idempotence)
    if found is not None:
        return found
    first = here.setdefault((post.peer, post.idempotence.key), post)
    if first is post or first.idempotence is None:
        return None
    post.idempotence.check(first.idempotence.digest, post.peer)
    return first.id


def append_posts(ledger: Ledger, posts: Sequence[Post], earlier: Iterable[int | None]) -> list[int]:
    """Put posts into the outbox; returns their ids."""
    ids = []
    for post, found in zip(posts, earlier, strict=True):
        if found is None:
            ledger.append(post.peer, post.encoded)
            if post.idempotence is not None:
                ledger.outbox.remember_posted(post.peer, post.idempotence, post.id, ledger.now_ms)
        ids.append(post.id if found is None else found)
    return ids


class Posting(Unit):
    """Posts that somebody waits for: all of them or none."""

    __slots__ = ("_posts", "done", "ids")

    def __init__(self, posts: Sequence[Post], done: asyncio.Future[None]) -> None:
        super().__init__(sum([len(post.encoded) for post in posts]))
        self._posts = posts
        self.ids: Sequence[int] = ()
        self.done = done

    def apply(self, ledger: Ledger) -> None:
        self.ids = append_posts(ledger, self._posts, check_posts(ledger, self._posts))

    def settle(self, error: Exception | None) -> None:
        tell(self.done, error)


class _Batch:
    """Posts to one peer, with those who wait for them."""

    __slots__ = ("encoded", "error", "taken", "waiting")

    def __init__(self) -> None:
        self.encoded: list[bytes] = []
        self.waiting: list[asyncio.Future[None]] = []
        # How many of them were taken, and why not the others.
        self.taken = 0
        self.error: OutboxFullError | None = None

    def apply(self, peer: str, ledger: Ledger) -> None:
        self.taken, self.error = len(self.encoded), None
        if peer != ledger.owner:
            try:
                ledger.outbox.check_room(peer, self.taken)
            except OutboxFullError as error:
                self.taken, self.error = ledger.outbox.room(peer), error
        ledger.append_all(peer, self.encoded[: self.taken])

    def settle(self) -> None:
        for done in self.waiting[: self.taken]:
            if not done.done():
                done.set_result(None)
        for done in self.waiting[self.taken :]:
            tell(done, self.error)


class Gathering(Unit):
    """Posts without idempotency keys that wait for the same commit, each by itself.

    Most posts are of this kind, so what is done once for many of them is not done for each.
    """

    __slots__ = ("_batches",)

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._batches: dict[str, _Batch] = {}

    def add(self, post: Post, done: asyncio.Future[None]) -> None:
        """Take one more, as long as the commit has not begun."""
        batch = self._batches.get(post.peer)
        if batch is None:
            batch = self._batches[post.peer] = _Batch()
        batch.encoded.append(post.encoded)
        batch.waiting.append(done)

    def apply(self, ledger: Ledger) -> None:
        for peer, batch in self._batches.items():
            batch.apply(peer, ledger)

    def settle(self, error: Exception | None) -> None:
        for batch in self._batches.values():
            if error is None:
                batch.settle()
            else:
                for done in batch.waiting:
                    tell(done, error)


def gather(writer: Writer, post: Post) -> asyncio.Future[None]:
    """Have a post without an idempotency key committed with the others that wait for it."""
    done: asyncio.Future[None] = writer.create_future()
    newest = writer.newest
    if type(newest) is Gathering:
        newest.add(post, done)
        writer.grow(len(post.encoded))
    else:
        gathering = Gathering(len(post.encoded))
        gathering.add(post, done)
        writer.submit(gathering)
    return done
