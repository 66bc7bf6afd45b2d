"""What reaches a node above its layers: letters of its queues, operators, and their servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http.client import HTTPResponse
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from fuzz.target import Target, prefixes, require
from postroad.admin import client, remote
from postroad.admin.bodies import SHOWN_MAX, show_body
from postroad.admin.http.wishes import wish_from_body
from postroad.admin.operations import OPERATIONS
from postroad.admin.problems import CONTENT_TYPE, make_problem
from postroad.cells import CellPath
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.envelope_codec import encode_envelope
from postroad.cluster.messaging import decode_with
from postroad.core.errors import MalformedPayloadError, PostroadError, Reject
from postroad.node import content, durable_events
from postroad.node.queues.codec import Codec


class _Order(msgspec.Struct):
    item: str
    count: int = 1
    tags: list[str] = []
    parent: _Order | None = None


_QUEUE = "orders"
_NODE = "S1"
_MESSAGE = Envelope(
    id=bytes(range(16)),
    kind=MessageKind.MESSAGE,
    source=CellPath.of("sender@alpha"),
    destination=content.path_to(_QUEUE),
    payload=b"body",
)


def check_reading(
    read: Callable[[bytes], object], refusals: tuple[type[Exception], ...], data: bytes
) -> None:
    """Any bytes are read or refused, cut off or not."""
    for part in (*prefixes(data), data):
        try:
            read(part)
        except refusals:
            continue


def read_guaranteed(data: bytes) -> None:
    """A letter of a guaranteed queue is a message to that queue, also after it aged."""
    envelope, body = content.read_message(data, _QUEUE, _NODE)
    sender = envelope.source.sender
    require(sender is not None and sender.domain == _NODE, f"{sender} is in another node")
    require(envelope.destination == content.path_to(_QUEUE), f"{envelope} is for another queue")
    aged, _ = content.aged(body, envelope, 1.0)
    content.read_message(aged, _QUEUE, _NODE)


def read_typed(data: bytes) -> None:
    """A body that fits the type of its queue survives being encoded again."""
    codec = Codec(_Order)
    order = codec.decode(data)
    require(codec.decode(codec.encode(order)) == order, f"{order} changed")


def read_ask(data: bytes) -> None:
    """What a member asks for has parameters that the operation takes."""
    ask = decode_with(remote._decode_ask, data)
    OPERATIONS.find(ask.operation).read_params(ask.params)


def read_answer(data: bytes) -> None:
    """What a member answers is what the operation returns, or an error."""
    remote.read_result(decode_with(remote._decode_answer, data), _OPERATION.name, "beta")


def read_reply(data: bytes) -> None:
    """What a server of the API says is JSON, or an error that can be shown."""
    headers = {"content-type": CONTENT_TYPE}
    response = cast(HTTPResponse, SimpleNamespace(status=500, headers=headers, reason="Failed"))
    require(isinstance(client._error_in(response, data), Exception), "no error to raise")
    error = client._problem_error(client._parse(data))
    require(isinstance(error, Exception), "no error to raise")


def check_body(data: bytes) -> None:
    """Every body of a message can be shown."""
    body = show_body(data)
    require(len(body.text) <= SHOWN_MAX, f"{len(body.text)} characters are shown")
    body.text.encode()


def _event(**changes: Any) -> bytes:
    letter = durable_events._Letter(
        id="1", event="order.created", group="mail", data={"n": 1}, meta={}, headers={}, level=1,
        tracing=None, parent_id=None, request_id="r", caller=None, origin="alpha",
    )  # fmt: skip
    return msgspec.msgpack.encode(msgspec.structs.replace(letter, **changes))


_ASKS = [remote.Ask("node.show", {}), remote.Ask("flow.ls", {"limit": 3})]
_ANSWERS = [
    remote.Answer(msgspec.Raw(msgspec.msgpack.encode({"name": "alpha", "list": [1, None]}))),
    remote.Answer(msgspec.Raw(b"\xc0"), make_problem(404, "no such flow")),
]
_PROBLEM = msgspec.json.encode(make_problem(400, "no"))
_OPERATION = OPERATIONS.find("flow.ls")

TARGETS = [
    Target(
        "node-guaranteed",
        partial(check_reading, read_guaranteed, (Reject,)),
        [
            encode_envelope(_MESSAGE),
            encode_envelope(msgspec.structs.replace(_MESSAGE, ttl_ms=5_000)),
        ],
    ),
    Target(
        "node-durable-event",
        partial(check_reading, durable_events._read, (Reject,)),
        [_event(), _event(hops=3, data=None, tracing=True)],
    ),
    Target(
        "node-typed-queue",
        partial(check_reading, read_typed, (MalformedPayloadError,)),
        [b'{"item": "tea"}', b'{"item": "tea", "tags": ["a"], "parent": {"item": "", "count": 0}}'],
    ),
    Target(
        "admin-ask",
        partial(check_reading, read_ask, (PostroadError,)),
        [msgspec.msgpack.encode(ask) for ask in _ASKS],
    ),
    Target(
        "admin-answer",
        partial(check_reading, read_answer, (PostroadError,)),
        [msgspec.msgpack.encode(answer) for answer in _ANSWERS],
    ),
    Target(
        "admin-request-body",
        partial(check_reading, lambda data: wish_from_body(_OPERATION, data, ()), (PostroadError,)),
        [b"{}", b'{"limit": 5, "name": "pay"}', b'[1, "a"]'],
    ),
    Target(
        "admin-reply",
        partial(check_reading, read_reply, (PostroadError,)),
        [_PROBLEM, b'{"a": [1, {}]}', b"<html>"],
    ),
    Target("admin-shown-body", check_body, [b'{"a": 1}', b"text", b"\x82\xa1a\x01\xa1b\xc0"]),
]
