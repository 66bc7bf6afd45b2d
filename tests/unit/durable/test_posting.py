"""From the arguments of `post` to a letter: what is refused, and what ends up in it."""

import time
from typing import Any

import pytest

from postroad.core.errors import ConfigError, MessageTooLargeError, PostroadError, UsageError
from postroad.durable import Draft, Letter, MailConfig
from postroad.durable.letters import bind_page, decode_letter, decode_page
from postroad.durable.posting import Clerk, Post
from tests.support.cases import each


@pytest.fixture
def clerk() -> Clerk:
    return Clerk(MailConfig(message_bytes_max=1_000))


def letter_of(post: Post) -> Letter:
    letter = decode_letter(post.encoded)
    assert letter.id == post.id
    return letter


def test_plain_letter_has_body_and_time_both_ways(clerk: Clerk) -> None:
    before_ms = time.time_ns() // 1_000_000
    post = clerk.post("beta", "orders", b"body")
    letter = letter_of(post)
    assert post.peer == "beta"
    assert post.idempotence is None
    assert letter == Letter(post.id, "orders", b"body", letter.posted_ms)
    assert before_ms <= letter.posted_ms <= time.time_ns() // 1_000_000
    post = clerk.plain("beta", "orders", b"body")
    letter = letter_of(post)
    assert post == Post("beta", post.id, post.encoded)
    assert letter == Letter(post.id, "orders", b"body", letter.posted_ms)
    assert letter_of(clerk.plain("beta", "orders", bytearray(b"x"))).body == b"x"  # type: ignore[arg-type]


@each(
    ("", "orders", b"", ConfigError),
    ("beta", "no name", b"", ConfigError),
    ("beta", "orders", "text", UsageError),
    ("beta", "orders", bytes(1_000), MessageTooLargeError),
)
def test_short_way_refuses_the_same(
    peer: str, queue: str, body: Any, error: type[PostroadError], clerk: Clerk
) -> None:
    for make in (clerk.plain, clerk.post):
        with pytest.raises(error):
            make(peer, queue, body)


def test_letter_carries_every_argument_and_any_body(clerk: Clerk) -> None:
    letter = letter_of(
        clerk.post(
            "beta",
            "orders",
            b"",
            key="k",
            delay=1.5,
            ttl=60,
            priority=-3,
            headers={"a": "b"},
            reply_to="answers",
            answers=7,
        )
    )
    assert (letter.key, letter.priority, letter.headers) == ("k", -3, {"a": "b"})
    assert (letter.reply_to, letter.answers) == ("answers", 7)
    assert letter.due_ms - letter.posted_ms == 1_500
    assert letter.expires_ms - letter.posted_ms == 60_000
    assert letter_of(clerk.post("beta", "orders", b"", delay=0)).due_ms > 0
    assert letter_of(clerk.post("beta", "orders", b"", ttl=0)).expires_ms > 0
    bodies: list[Any] = [bytearray(b"body"), memoryview(b"body")]
    for body in bodies:
        assert letter_of(clerk.post("beta", "orders", body)).body == b"body", body


def test_draft_says_the_same(clerk: Clerk) -> None:
    facts: dict[str, Any] = {
        "peer": "beta",
        "queue": "orders",
        "body": b"x",
        "key": "k",
        "idempotency_key": "i",
        "priority": 2,
        "headers": {"a": "b"},
        "reply_to": "r",
    }
    drafted, posted = clerk.draft(Draft(**facts)), clerk.post(**facts)
    assert drafted.idempotence == posted.idempotence
    for field in ("queue", "body", "key", "priority", "headers", "reply_to"):
        assert getattr(letter_of(drafted), field) == facts[field]


def test_letters_have_ids_and_make_pages(clerk: Clerk) -> None:
    clerks = [Clerk(MailConfig()) for _ in range(3)]
    ids = [clerk.post("beta", "orders", b"").id for _ in range(100) for clerk in clerks]
    assert len(set(ids)) == len(ids)
    assert all(0 <= id < 1 << 63 for id in ids)
    posts = [clerk.post("beta", "orders", b"%d" % number) for number in range(20)]
    letters = decode_page(bind_page([post.encoded for post in posts]))
    assert [letter.id for letter in letters] == [post.id for post in posts]


@each(
    ({"peer": ""}, ConfigError),
    ({"queue": ""}, ConfigError),
    ({"queue": "a b"}, ConfigError),
    ({"body": "text"}, UsageError),
    ({"body": None}, UsageError),
    ({"key": "a\0"}, ConfigError),
    ({"key": "k" * 1_025}, ConfigError),
    ({"idempotency_key": "a\0"}, ConfigError),
    ({"delay": -1}, ConfigError),
    ({"delay": float("nan")}, ConfigError),
    ({"ttl": float("inf")}, ConfigError),
    ({"ttl": 4e9}, ConfigError),
    ({"priority": 1_001}, ConfigError),
    ({"priority": -1_001}, ConfigError),
    ({"headers": {"a": 1}}, UsageError),
    ({"headers": {1: "a"}}, UsageError),
    ({"headers": "text"}, UsageError),
)
def test_what_cannot_be_posted(
    facts: dict[str, Any], error: type[PostroadError], clerk: Clerk
) -> None:
    with pytest.raises(error):
        clerk.post(**{"peer": "beta", "queue": "orders", "body": b""} | facts)


@each(
    {"priority": True},
    {"priority": 1.5},
    {"reply_to": 5},
    {"reply_to": "\udc80"},
    {"reply_to": "a b"},
    {"headers": {"a": "\udc80"}},
)
def test_no_letter_is_made_that_nobody_can_read(facts: dict[str, Any], clerk: Clerk) -> None:
    # It would make its whole page unreadable, with the letters of others in it.
    with pytest.raises(PostroadError):
        clerk.post("beta", "orders", b"", **facts)


def test_largest_message_and_wrong_queue_are_refused(clerk: Clerk) -> None:
    overhead = len(clerk.post("beta", "orders", bytes(500)).encoded) - 500
    largest = clerk.post("beta", "orders", bytes(1_000 - overhead))
    assert len(largest.encoded) == 1_000
    with pytest.raises(MessageTooLargeError, match="1001 bytes; message_bytes_max is 1000"):
        clerk.post("beta", "orders", bytes(1_001 - overhead))
    with pytest.raises(MessageTooLargeError):
        clerk.post("beta", "orders", b"", headers={"a": "x" * 1_000})
    for _ in range(2):
        with pytest.raises(ConfigError):
            clerk.post("beta", "a b", b"")


# Idempotency: what is another message under the same key.

MESSAGE: dict[str, Any] = {"queue": "orders", "body": b"x", "key": "k", "headers": {"a": "b"}}


def digest_of(clerk: Clerk, **changes: Any) -> bytes:
    post = clerk.post("beta", **MESSAGE | {"idempotency_key": "once"} | changes)
    assert post.idempotence is not None
    return post.idempotence.digest


def test_message_posted_later_under_its_key_is_the_same(clerk: Clerk) -> None:
    assert digest_of(clerk) == digest_of(clerk, delay=5, ttl=7)
    post = clerk.post("beta", "orders", b"", idempotency_key="ß 7")
    assert post.idempotence is not None
    assert post.idempotence.key == "ß 7"


@each(
    {"queue": "others"},
    {"body": b"y"},
    {"key": None},
    {"key": "l"},
    {"headers": None},
    {"headers": {"a": "c"}},
    {"priority": 1},
)
def test_another_message_under_the_same_key_is_another(
    change: dict[str, Any], clerk: Clerk
) -> None:
    assert digest_of(clerk) != digest_of(clerk, **change)
