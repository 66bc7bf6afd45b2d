"""Handlers and their answers, without any connection."""

import asyncio
from collections.abc import Awaitable
from typing import cast

import pytest

from postroad.core import Address
from postroad.core.errors import (
    ConfigError,
    ConnectFailed,
    LocalProtocolError,
    MalformedPayload,
    PostroadError,
    RequestTimeout,
    UsageError,
)
from postroad.net.dispatch import (
    EXPIRED_ANSWER,
    STOPPING_ANSWER,
    Answer,
    Subscriptions,
    answer_of,
    consumer_answer,
    failure_answer,
    no_handler_answer,
    react,
    to_payload,
)
from postroad.net.message import Handler, Message, Result, Subscription
from postroad.wire import Status

MESSAGE = Message(b"payload", "subject", Address("127.0.0.1", 7))


def subscription(handler: object, *, one_way: bool = False) -> Subscription:
    return Subscription("subject", cast("Handler", handler), one_way)


SUBSCRIPTION = subscription(lambda _: None)


def test_results_become_bytes_or_failures(subtests: pytest.Subtests) -> None:
    results: dict[bytes, list[Result]] = {
        b"x": [b"x", bytearray(b"x"), memoryview(b"x")],
        b"": [None],
    }
    for payload, same in results.items():
        for result in same:
            reaction = react(subscription(lambda _, result=result: result), MESSAGE)
            assert reaction == to_payload(result, SUBSCRIPTION) == payload, result
            assert type(reaction) is bytes, result

    others: list[object] = ["x", 0, False, [], object]
    for other in others:
        with subtests.test(result=other):
            answer = react(subscription(lambda _, other=other: other), MESSAGE)
            assert isinstance(answer, Answer)
            assert answer.status == Status.HANDLER_FAILED
            assert type(other).__name__.encode() in answer.payload

    seen: list[Message] = []
    react(subscription(seen.append), MESSAGE)
    assert seen == [MESSAGE]


async def outcome(reaction: Awaitable[Result]) -> bytes | Answer:
    """What becomes of an asynchronous handler."""
    run = asyncio.ensure_future(reaction)
    await asyncio.wait({run})
    return answer_of(run, SUBSCRIPTION)


async def test_awaitables_are_handed_back() -> None:
    async def handler(message: Message) -> bytes:
        return message.payload

    reaction = react(subscription(handler), MESSAGE)
    assert isinstance(reaction, Awaitable)
    assert await outcome(reaction) == b"payload"


async def test_failures_become_answers(subtests: pytest.Subtests) -> None:
    for error, status, code, retryable in [
        (ValueError("no"), Status.HANDLER_FAILED, 0, False),
        (asyncio.CancelledError("no"), Status.HANDLER_FAILED, 0, False),
        (ConnectFailed("no"), Status.HANDLER_FAILED, ConnectFailed.code, True),
        (RequestTimeout("no"), Status.HANDLER_FAILED, RequestTimeout.code, False),
        (PostroadError("no"), Status.HANDLER_FAILED, PostroadError.code, False),
        (MalformedPayload("no"), Status.PROTOCOL_FAILED, MalformedPayload.code, False),
        (LocalProtocolError("no"), Status.PROTOCOL_FAILED, LocalProtocolError.code, False),
    ]:
        with subtests.test(code=code):

            def fail(_message: Message, error: BaseException = error) -> bytes:
                raise error

            async def fail_later(_message: Message, error: BaseException = error) -> bytes:
                raise error

            expected = Answer(status, b"no", code, retryable)
            assert react(subscription(fail), MESSAGE) == expected
            reaction = react(subscription(fail_later), MESSAGE)
            assert isinstance(reaction, Awaitable)
            assert await outcome(reaction) == expected


def test_texts_of_failures_are_valid_and_short(subtests: pytest.Subtests) -> None:
    for text in ["", "käse", "\ud800 alone", "x" * 1_000_000]:
        with subtests.test(text=text):
            answer = failure_answer(ValueError(text), SUBSCRIPTION)
            assert len(answer.payload) <= 20_000
            assert answer.payload.decode()[:100] == text.replace("\ud800", "?")[:100]

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    answer = failure_answer(Unspeakable(), SUBSCRIPTION)
    assert answer.status == Status.HANDLER_FAILED
    answer.payload.decode()


def test_answers_when_nobody_handles() -> None:
    assert no_handler_answer("käse") == Answer(Status.NO_HANDLER, "käse".encode(), 0, True)
    assert consumer_answer("log").status == Status.NO_HANDLER
    assert b"one-way" in consumer_answer("log").payload
    assert STOPPING_ANSWER.retryable
    assert EXPIRED_ANSWER.status == Status.HANDLER_FAILED


def test_one_handler_for_each_subject() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("a", lambda _: b"1", one_way=False)
    subscriptions.add("b", lambda _: b"2", one_way=True)
    with pytest.raises(ConfigError, match="'a' has a handler"):
        subscriptions.add("a", lambda _: b"3", one_way=False)
    assert react(subscriptions.by_subject["a"], MESSAGE) == b"1"
    assert subscriptions.by_subject["b"].one_way
    assert subscriptions.remove("a")
    assert not subscriptions.remove("a")
    assert sorted(subscriptions.by_subject) == ["b"]


def test_handlers_and_subjects_that_cannot_be_used_are_refused(subtests: pytest.Subtests) -> None:
    for handler in [None, b"reply", 7]:
        with subtests.test(handler=handler), pytest.raises(ConfigError, match="must be callable"):
            Subscriptions().add("a", cast("Handler", handler), one_way=False)

    for subject, is_fine in [("s" * 32_767, True), ("ä" * 16_384, False)]:
        with subtests.test(subject=subject):
            if is_fine:
                Subscriptions().add(subject, lambda _: None, one_way=False)
            else:
                with pytest.raises(ConfigError, match="32767"):
                    Subscriptions().add(subject, lambda _: None, one_way=False)

    with pytest.raises((ConfigError, UsageError)):
        Subscriptions().add("\ud800", lambda _: None, one_way=False)
