"""What stores, and nodes and their bridges, say to each other; and what a receiver does with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fuzz.target import Target, prefixes, require
from postroad.core.errors import MalformedPayloadError, StreamDivergedError
from postroad.durable.bridges.control import (
    BridgeCommand,
    BridgeCreate,
    BridgeDelete,
    BridgeManagerStatus,
    BridgeReport,
    BridgeRoute,
    BridgeSnapshot,
    BridgeSnapshotRequest,
    BridgeStatus,
    BridgeStatusRequest,
    decode_bridge_command,
    decode_bridge_report,
)
from postroad.durable.bridges.control import encode as encode_control
from postroad.durable.bridges.protocol import (
    MessageRejection,
    NewBatch,
    SequenceGap,
    StreamAck,
    StreamOpen,
    StreamWindow,
    WindowStatus,
    WireBatch,
    decode_stream_message,
    extend_chain,
    initial_chain,
    new_batches,
)
from postroad.durable.bridges.protocol import encode as encode_exchange
from postroad.durable.stored_messages import StoredMessage, decode_batch, encode_batch

_STORE = b"0123456789abcdef"
_START = initial_chain(_STORE, 1, "beta")
# No column of any database is larger.
_NUMBER_MAX = 1 << 62

_LETTERS = [
    StoredMessage(1, "orders", b"body", 1_700_000_000_000),
    StoredMessage(2, "größe", b"", 1, "key", {"a": "b"}, -5, 7, 9, "answers", 3),
]
_PAGES = [encode_batch(_LETTERS[:1]), encode_batch(_LETTERS), encode_batch([])]
_CHAIN = extend_chain(_START, _PAGES[0])
_WINDOWS = [
    StreamWindow(_STORE, 1, 2, 0, 5, 1, _START, [WireBatch(1, _CHAIN, _PAGES[0])]),
    StreamWindow(
        _STORE,
        1,
        2,
        1,
        5,
        1,
        _START,
        [WireBatch(1, _CHAIN, None), WireBatch(2, extend_chain(_CHAIN, _PAGES[1]), _PAGES[1])],
    ),
    StreamWindow(_STORE, 1, 2, 1, 5, 2, _CHAIN, []),
]
_OFFERS = [StreamOpen(_STORE, 1, 2, 3), StreamOpen(_STORE, 0, 0, 0, version=9)]
_ANSWERS = [
    StreamAck(WindowStatus.ACCEPTED, 0, _START, 1 << 30, []),
    StreamAck(WindowStatus.FULL, 9, _CHAIN, 0, [MessageRejection(8, "too large", "9 bytes")]),
]
_ENTRY = BridgeRoute("internal.peers.beta", "10.0.0.2:26502", "beta")
_TO_BRIDGE: list[BridgeCommand] = [
    BridgeSnapshot("alpha", "p2p.inbound.alpha", [_ENTRY]),
    BridgeCreate("alpha", _ENTRY),
    BridgeDelete("alpha", "internal.peers.beta"),
    BridgeStatusRequest(7),
]
_TO_NODE: list[BridgeReport] = [
    BridgeSnapshotRequest("alpha.bridge"),
    BridgeManagerStatus(7, "alpha", 3, [BridgeStatus("beta", "10.0.0.2:1", "sending", 5, None)]),
]


def validate_message(
    decode_one: Callable[[bytes], object], encode_one: Callable[[object], bytes], data: bytes
) -> None:
    """Any bytes are a message or malformed, cut off or not."""
    for it in (*prefixes(data), data):
        try:
            message = decode_one(it)
        except MalformedPayloadError:
            continue
        again = decode_one(encode_one(message))
        require(again == message, f"{message} does not survive encoding")


def check_page(data: bytes) -> None:
    """Any bytes are a page or malformed; what is read has room in every database."""
    validate_message(decode_batch, encode_exchange, data)
    try:
        letters = decode_batch(data)
    except MalformedPayloadError:
        return
    for letter in letters:
        numbers = (letter.sent_ms, letter.deliver_at_ms, letter.expires_ms, letter.id // 2)
        require(all(0 <= it < _NUMBER_MAX for it in numbers), f"{letter} fits no table")


def check_intake(data: bytes) -> None:
    """Whatever a window holds, only a row without gaps that continues the stream is taken."""
    try:
        window = decode_stream_message(StreamWindow, data)
    except MalformedPayloadError:
        return
    for watermark, chain in ((0, _START), (1, _CHAIN)):
        taken: list[NewBatch] = []
        try:
            taken.extend(new_batches(watermark, chain, window))
        except (SequenceGap, StreamDivergedError):
            continue
        for fresh in taken:
            require(fresh.first == watermark + 1, f"{fresh.first} follows {watermark}")
            require(fresh.last < _NUMBER_MAX, f"{fresh.last} fits no table")
            watermark = fresh.last
        require(not taken or window.previous == chain or window.first <= 1, "another history")


TARGETS = [
    Target("durable-page", check_page, _PAGES),
    Target(
        "durable-offer",
        partial(validate_message, partial(decode_stream_message, StreamOpen), encode_exchange),
        [encode_exchange(it) for it in _OFFERS],
    ),
    Target(
        "durable-answer",
        partial(validate_message, partial(decode_stream_message, StreamAck), encode_exchange),
        [encode_exchange(it) for it in _ANSWERS],
    ),
    Target(
        "durable-window",
        partial(validate_message, partial(decode_stream_message, StreamWindow), encode_exchange),
        [encode_exchange(it) for it in _WINDOWS],
    ),
    Target("durable-intake", check_intake, [encode_exchange(it) for it in _WINDOWS]),
    Target(
        "durable-to-bridge",
        partial(validate_message, decode_bridge_command, encode_control),
        [encode_control(it) for it in _TO_BRIDGE],
    ),
    Target(
        "durable-to-node",
        partial(validate_message, decode_bridge_report, encode_control),
        [encode_control(it) for it in _TO_NODE],
    ),
]
