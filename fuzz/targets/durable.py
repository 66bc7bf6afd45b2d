"""What stores, and nodes and their bridges, say to each other; and what a receiver does with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fuzz.target import Target, prefixes, require
from postroad.core.errors import MalformedPayloadError, StreamDivergedError
from postroad.durable.chain import extend, genesis
from postroad.durable.control import (
    BridgeEntry,
    BridgeHealth,
    Create,
    Delete,
    Health,
    HealthCheck,
    Snapshot,
    SnapshotRequest,
    ToBridge,
    ToNode,
    decode_for_bridge,
    decode_for_node,
)
from postroad.durable.control import encode as encode_control
from postroad.durable.dedup import FreshPage, GapBefore, sift
from postroad.durable.exchange import Answer, Offer, Refusal, SentPage, Verdict, Window, decode
from postroad.durable.exchange import encode as encode_exchange
from postroad.durable.letters import Letter, decode_page, encode_page

_STORE = b"0123456789abcdef"
_START = genesis(_STORE, 1, "beta")
# No column of any database is larger.
_NUMBER_MAX = 1 << 62

_LETTERS = [
    Letter(1, "orders", b"body", 1_700_000_000_000),
    Letter(2, "größe", b"", 1, "key", {"a": "b"}, -5, 7, 9, "answers", 3),
]
_PAGES = [encode_page(_LETTERS[:1]), encode_page(_LETTERS), encode_page([])]
_CHAIN = extend(_START, _PAGES[0])
_WINDOWS = [
    Window(_STORE, 1, 2, 0, 5, 1, _START, [SentPage(1, _CHAIN, _PAGES[0])]),
    Window(
        _STORE,
        1,
        2,
        1,
        5,
        1,
        _START,
        [SentPage(1, _CHAIN, None), SentPage(2, extend(_CHAIN, _PAGES[1]), _PAGES[1])],
    ),
    Window(_STORE, 1, 2, 1, 5, 2, _CHAIN, []),
]
_OFFERS = [Offer(_STORE, 1, 2, 3), Offer(_STORE, 0, 0, 0, version=9)]
_ANSWERS = [
    Answer(Verdict.ACCEPTED, 0, _START, 1 << 30, []),
    Answer(Verdict.FULL, 9, _CHAIN, 0, [Refusal(8, "too large", "9 bytes")]),
]
_ENTRY = BridgeEntry("internal.peers.beta", "10.0.0.2:26502", "beta")
_TO_BRIDGE: list[ToBridge] = [
    Snapshot("alpha", "p2p.inbound.alpha", [_ENTRY]),
    Create("alpha", _ENTRY),
    Delete("alpha", "internal.peers.beta"),
    HealthCheck(7),
]
_TO_NODE: list[ToNode] = [
    SnapshotRequest("alpha.bridge"),
    Health(7, "alpha", 3, [BridgeHealth("beta", "10.0.0.2:1", "sending", 5, None)]),
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
    validate_message(decode_page, encode_exchange, data)
    try:
        letters = decode_page(data)
    except MalformedPayloadError:
        return
    for letter in letters:
        numbers = (letter.posted_ms, letter.due_ms, letter.expires_ms, letter.id // 2)
        require(all(0 <= it < _NUMBER_MAX for it in numbers), f"{letter} fits no table")


def check_intake(data: bytes) -> None:
    """Whatever a window holds, only a row without gaps that continues the stream is taken."""
    try:
        window = decode(Window, data)
    except MalformedPayloadError:
        return
    for watermark, chain in ((0, _START), (1, _CHAIN)):
        taken: list[FreshPage] = []
        try:
            taken.extend(sift(watermark, chain, window))
        except (GapBefore, StreamDivergedError):
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
        partial(validate_message, partial(decode, Offer), encode_exchange),
        [encode_exchange(it) for it in _OFFERS],
    ),
    Target(
        "durable-answer",
        partial(validate_message, partial(decode, Answer), encode_exchange),
        [encode_exchange(it) for it in _ANSWERS],
    ),
    Target(
        "durable-window",
        partial(validate_message, partial(decode, Window), encode_exchange),
        [encode_exchange(it) for it in _WINDOWS],
    ),
    Target("durable-intake", check_intake, [encode_exchange(it) for it in _WINDOWS]),
    Target(
        "durable-to-bridge",
        partial(validate_message, decode_for_bridge, encode_control),
        [encode_control(it) for it in _TO_BRIDGE],
    ),
    Target(
        "durable-to-node",
        partial(validate_message, decode_for_node, encode_control),
        [encode_control(it) for it in _TO_NODE],
    ),
]
