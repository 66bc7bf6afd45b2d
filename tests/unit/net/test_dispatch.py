"""Handlers and their answers, without any connection."""

import asyncio
from collections.abc import Awaitable
from typing import cast

import pytest

from postroad.core import Address
from postroad.core.errors import (
    ConfigError,
    ConnectError,
    LocalProtocolError,
    MalformedPayloadError,
    PostroadError,
    ReplyTimeoutError,
    UsageError,
)
from postroad.net import dispatch
from postroad.wire import ReplyStatus

MESSAGE = dispatch.RawMessage(b"payload", "subject", Address("127.0.0.1", 7))


def subscription(handler: object, *, one_way: bool = False) -> dispatch.Subscription:
    return dispatch.Subscription("subject", cast("dispatch.MessageHandler", handler), one_way)


SUBSCRIPTION = subscription(lambda _: None)


def test_results_become_bytes_or_failures(subtests: pytest.Subtests) -> None:
    results: dict[bytes, list[dispatch.HandlerReturn]] = {
        b"x": [b"x", bytearray(b"x"), memoryview(b"x")],
        b"": [None],
    }
    for payload, same in results.items():
        for result in same:
            reaction = dispatch.call_handler(subscription(lambda _, result=result: result), MESSAGE)
            assert reaction == dispatch.to_payload(result, SUBSCRIPTION) == payload, result
            assert type(reaction) is bytes, result

    others: list[object] = ["x", 0, False, [], object]
    for other in others:
        with subtests.test(result=other):
            answer = dispatch.call_handler(subscription(lambda _, other=other: other), MESSAGE)
            assert isinstance(answer, dispatch.HandlerReply)
            assert answer.status == ReplyStatus.HANDLER_FAILED
            assert type(other).__name__.encode() in answer.payload

    seen: list[dispatch.RawMessage] = []
    dispatch.call_handler(subscription(seen.append), MESSAGE)
    assert seen == [MESSAGE]


async def outcome(reaction: Awaitable[dispatch.HandlerReturn]) -> bytes | dispatch.HandlerReply:
    """What becomes of an asynchronous handler."""
    run = asyncio.ensure_future(reaction)
    await asyncio.wait({run})
    return dispatch.reply_from_task(run, SUBSCRIPTION)


async def test_awaitables_are_handed_back() -> None:
    async def handler(message: dispatch.RawMessage) -> bytes:
        return message.payload

    reaction = dispatch.call_handler(subscription(handler), MESSAGE)
    assert isinstance(reaction, Awaitable)
    assert await outcome(reaction) == b"payload"


async def test_error_reply_carries_exception_text(subtests: pytest.Subtests) -> None:
    for error, status, code, retryable in [
        (ValueError("no"), ReplyStatus.HANDLER_FAILED, 0, False),
        (asyncio.CancelledError("no"), ReplyStatus.HANDLER_FAILED, 0, False),
        (ConnectError("no"), ReplyStatus.HANDLER_FAILED, ConnectError.code, True),
        (ReplyTimeoutError("no"), ReplyStatus.HANDLER_FAILED, ReplyTimeoutError.code, False),
        (PostroadError("no"), ReplyStatus.HANDLER_FAILED, PostroadError.code, False),
        (
            MalformedPayloadError("no"),
            ReplyStatus.PROTOCOL_FAILED,
            MalformedPayloadError.code,
            False,
        ),
        (LocalProtocolError("no"), ReplyStatus.PROTOCOL_FAILED, LocalProtocolError.code, False),
    ]:
        with subtests.test(code=code):

            def fail(_message: dispatch.RawMessage, error: BaseException = error) -> bytes:
                raise error

            async def fail_later(
                _message: dispatch.RawMessage, error: BaseException = error
            ) -> bytes:
                raise error

            expected = dispatch.HandlerReply(status, b"no", code, retryable)
            assert dispatch.call_handler(subscription(fail), MESSAGE) == expected
            reaction = dispatch.call_handler(subscription(fail_later), MESSAGE)
            assert isinstance(reaction, Awaitable)
            assert await outcome(reaction) == expected


def test_texts_of_failures_are_valid_and_short(subtests: pytest.Subtests) -> None:
    for text in ["", "käse", "\ud800 alone", "x" * 1_000_000]:
        with subtests.test(text=text):
            answer = dispatch.error_reply(ValueError(text), SUBSCRIPTION)
            assert len(answer.payload) <= 20_000
            assert answer.payload.decode()[:100] == text.replace("\ud800", "?")[:100]

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    answer = dispatch.error_reply(Unspeakable(), SUBSCRIPTION)
    assert answer.status == ReplyStatus.HANDLER_FAILED
    answer.payload.decode()


def test_no_handler_and_one_way_replies() -> None:
    assert dispatch.no_handler_reply("käse") == dispatch.HandlerReply(
        ReplyStatus.NO_HANDLER, "käse".encode(), 0, True
    )
    assert dispatch.one_way_handler_reply("log").status == ReplyStatus.NO_HANDLER
    assert b"one-way" in dispatch.one_way_handler_reply("log").payload
    assert dispatch.STOPPING_REPLY.retryable
    assert dispatch.HANDLER_TIMEOUT_REPLY.status == ReplyStatus.HANDLER_FAILED


def test_one_handler_for_each_subject() -> None:
    subscriptions = dispatch.SubscriptionTable()
    subscriptions.add("a", lambda _: b"1", one_way=False)
    subscriptions.add("b", lambda _: b"2", one_way=True)
    with pytest.raises(ConfigError, match="'a' has a handler"):
        subscriptions.add("a", lambda _: b"3", one_way=False)
    assert dispatch.call_handler(subscriptions.by_subject["a"], MESSAGE) == b"1"
    assert subscriptions.by_subject["b"].one_way
    assert subscriptions.remove("a")
    assert not subscriptions.remove("a")
    assert sorted(subscriptions.by_subject) == ["b"]


def test_handlers_and_subjects_that_cannot_be_used_are_refused(subtests: pytest.Subtests) -> None:
    for handler in [None, b"reply", 7]:
        with subtests.test(handler=handler), pytest.raises(ConfigError, match="must be callable"):
            dispatch.SubscriptionTable().add(
                "a", cast("dispatch.MessageHandler", handler), one_way=False
            )

    for subject, is_fine in [("s" * 32_767, True), ("ä" * 16_384, False)]:
        with subtests.test(subject=subject):
            if is_fine:
                dispatch.SubscriptionTable().add(subject, lambda _: None, one_way=False)
            else:
                with pytest.raises(ConfigError, match="32767"):
                    dispatch.SubscriptionTable().add(subject, lambda _: None, one_way=False)

    with pytest.raises((ConfigError, UsageError)):
        dispatch.SubscriptionTable().add("\ud800", lambda _: None, one_way=False)
