"""From the arguments of `post` to a letter: what is refused, and what ends up in it."""

import time
from functools import partial
from typing import Any

import pytest

from postroad.core.errors import ConfigError, MessageTooLargeError, PostroadError, UsageError
from postroad.durable import DurableQueuesConfig, OutgoingMessage, StoredMessage
from postroad.durable.producer import EncodedMessage, MessageEncoder
from postroad.durable.stored_messages import decode_batch, decode_stored_message, join_batch
from tests.support.cases import each
from tests.support.durable.nodes import encode


@pytest.fixture
def clerk() -> MessageEncoder:
    return MessageEncoder(DurableQueuesConfig(message_bytes_max=1_000), "alpha")


def letter_of(post: EncodedMessage) -> StoredMessage:
    letter = decode_stored_message(post.encoded)
    assert letter.id == post.id
    return letter


def test_fast_encoding_contains_body_and_time(clerk: MessageEncoder) -> None:
    before_ms = time.time_ns() // 1_000_000
    post = encode(clerk, "beta", "orders", b"body")
    letter = letter_of(post)
    assert post.peer == "beta"
    assert post.idempotency is None
    assert letter == StoredMessage(post.id, "orders", b"body", letter.sent_ms)
    assert before_ms <= letter.sent_ms <= time.time_ns() // 1_000_000
    post = clerk.encode_fast("beta", "orders", b"body")
    letter = letter_of(post)
    assert post == EncodedMessage("beta", post.id, post.encoded)
    assert letter == StoredMessage(post.id, "orders", b"body", letter.sent_ms)
    assert letter_of(clerk.encode_fast("beta", "orders", bytearray(b"x"))).body == b"x"  # type: ignore[arg-type]


@each(
    ("", "orders", b"", ConfigError),
    ("beta", "no name", b"", ConfigError),
    ("beta", "orders", "text", UsageError),
    ("beta", "orders", bytes(1_000), MessageTooLargeError),
)
def test_short_way_refuses_the_same(
    peer: str, queue: str, body: Any, error: type[PostroadError], clerk: MessageEncoder
) -> None:
    for make in (clerk.encode_fast, partial(encode, clerk)):
        with pytest.raises(error):
            make(peer, queue, body)


def test_encoded_message_contains_all_arguments(clerk: MessageEncoder) -> None:
    letter = letter_of(
        encode(
            clerk,
            "beta",
            "orders",
            b"",
            key="k",
            delay=1.5,
            ttl=60,
            priority=-3,
            headers={"a": "b"},
            reply_to="answers",
        )
    )
    assert (letter.key, letter.priority, letter.headers) == ("k", -3, {"a": "b"})
    assert (letter.reply_to, letter.in_reply_to) == ("answers", None)
    assert letter.deliver_at_ms - letter.sent_ms == 1_500
    assert letter.expires_ms - letter.sent_ms == 60_000
    assert letter_of(encode(clerk, "beta", "orders", b"", delay=0)).deliver_at_ms > 0
    assert letter_of(encode(clerk, "beta", "orders", b"", ttl=0)).expires_ms > 0
    bodies: list[Any] = [bytearray(b"body"), memoryview(b"body")]
    for body in bodies:
        assert letter_of(encode(clerk, "beta", "orders", body)).body == b"body", body


def test_reply_names_the_message_that_it_replies_to(clerk: MessageEncoder) -> None:
    reply = OutgoingMessage(queue="answers", body=b"x")
    assert letter_of(clerk.encode(reply, in_reply_to=7)).in_reply_to == 7


def test_message_without_receiver_is_for_this_node(clerk: MessageEncoder) -> None:
    message = OutgoingMessage(queue="orders", body=b"x")
    assert clerk.encode(message).peer == "alpha"


def test_encoded_messages_have_ids_and_join_into_batches(clerk: MessageEncoder) -> None:
    clerks = [MessageEncoder(DurableQueuesConfig(), "alpha") for _ in range(3)]
    ids = [encode(clerk, "beta", "orders", b"").id for _ in range(100) for clerk in clerks]
    assert len(set(ids)) == len(ids)
    assert all(0 <= id < 1 << 63 for id in ids)
    posts = [encode(clerk, "beta", "orders", b"%d" % number) for number in range(20)]
    letters = decode_batch(join_batch([post.encoded for post in posts]))
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
def test_invalid_messages_are_rejected(
    facts: dict[str, Any], error: type[PostroadError], clerk: MessageEncoder
) -> None:
    with pytest.raises(error):
        encode(clerk, **{"peer": "beta", "queue": "orders", "body": b""} | facts)


@each(
    {"priority": True},
    {"priority": 1.5},
    {"reply_to": 5},
    {"reply_to": "\udc80"},
    {"reply_to": "a b"},
    {"headers": {"a": "\udc80"}},
)
def test_encoder_rejects_messages_that_cannot_be_decoded(
    facts: dict[str, Any], clerk: MessageEncoder
) -> None:
    # It would make its whole page unreadable, with the letters of others in it.
    with pytest.raises(PostroadError):
        encode(clerk, "beta", "orders", b"", **facts)


def test_largest_message_and_wrong_queue_are_refused(clerk: MessageEncoder) -> None:
    overhead = len(encode(clerk, "beta", "orders", bytes(500)).encoded) - 500
    largest = encode(clerk, "beta", "orders", bytes(1_000 - overhead))
    assert len(largest.encoded) == 1_000
    with pytest.raises(MessageTooLargeError, match="1001 bytes; message_bytes_max is 1000"):
        encode(clerk, "beta", "orders", bytes(1_001 - overhead))
    with pytest.raises(MessageTooLargeError):
        encode(clerk, "beta", "orders", b"", headers={"a": "x" * 1_000})
    for _ in range(2):
        with pytest.raises(ConfigError):
            encode(clerk, "beta", "a b", b"")


# Idempotency: what is another message under the same key.

MESSAGE: dict[str, Any] = {"queue": "orders", "body": b"x", "key": "k", "headers": {"a": "b"}}


def digest_of(clerk: MessageEncoder, **changes: Any) -> bytes:
    post = encode(clerk, "beta", **MESSAGE | {"idempotency_key": "once"} | changes)
    assert post.idempotency is not None
    return post.idempotency.digest


def test_repeated_send_with_same_key_matches_first_send(clerk: MessageEncoder) -> None:
    assert digest_of(clerk) == digest_of(clerk, delay=5, ttl=7)
    post = encode(clerk, "beta", "orders", b"", idempotency_key="ß 7")
    assert post.idempotency is not None
    assert post.idempotency.key == "ß 7"


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
    change: dict[str, Any], clerk: MessageEncoder
) -> None:
    assert digest_of(clerk) != digest_of(clerk, **change)
