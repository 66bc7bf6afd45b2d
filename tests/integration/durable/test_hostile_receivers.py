"""Peers that answer whatever they like: what they say harms only what is meant for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from postroad.durable.bridges.protocol import (
    DeadLetterReason,
    MessageRejection,
    StreamAck,
    StreamOpen,
    StreamWindow,
    WindowStatus,
    decode_stream_message,
    encode,
    initial_chain,
)
from postroad.durable.names import DELIVER, OFFER
from postroad.net import MessagingService, RawMessage
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import (
    CLUSTER,
    LIMITS,
    Recorder,
    Station,
    numbers_of,
    post_numbers,
    running_pair,
    until_dead,
    until_empty,
)

MUCH = 1 << 30


def accept_offer(message: RawMessage) -> bytes:
    """Answer as a node that has never heard of the sender."""
    offer = decode_stream_message(StreamOpen, message.payload)
    chain = initial_chain(offer.store, offer.epoch, "mallory")
    return encode(StreamAck(WindowStatus.ACCEPTED, 0, chain, MUCH, []))


def fence(message: RawMessage) -> bytes:
    """Claim to have heard from somebody who has taken over."""
    return encode(StreamAck(WindowStatus.FENCED, 0, bytes(16), 0, []))


def refuse_often(message: RawMessage) -> bytes:
    """Accept everything, and refuse the first message a thousand times."""
    window = decode_stream_message(StreamWindow, message.payload)
    last = window.first + sum(page.count for page in window.batches) - 1
    refusals = [MessageRejection(window.first, DeadLetterReason.UNKNOWN_QUEUE, "no")] * 1_000
    return encode(StreamAck(WindowStatus.ACCEPTED, last, window.batches[-1].chain, MUCH, refusals))


@asynccontextmanager
async def mallory_beside(
    directory: Path,
    *,
    on_offer: Callable[[RawMessage], bytes] = accept_offer,
    on_window: Callable[[RawMessage], bytes] = refuse_often,
) -> AsyncIterator[tuple[Station, Station]]:
    """Alpha and beta, and mallory whom alpha knows as well."""
    async with (
        running_pair(directory) as (alpha, beta),
        MessagingService(CLUSTER, "mallory", limits=LIMITS) as mallory,
    ):
        mallory.serve(OFFER, on_offer)
        mallory.serve(DELIVER, on_window)
        alpha.directory.set("mallory", mallory.address)
        yield alpha, beta


async def until_refused(alpha: Station, peer: str) -> None:
    """The bridge to a peer has stopped."""

    async def is_refused() -> bool:
        return any(
            bridge.peer == peer and bridge.state == "mismatch"
            for bridge in (await alpha.mail.bridges.status()).bridges
        )

    await eventually(is_refused, f"the bridge to {peer} is refused")


@pytest.mark.parametrize("where", ["on_offer", "on_window"])
async def test_peer_that_claims_another_bridge_stops_its_own(tmp_path: Path, where: str) -> None:
    answers = {where: fence}
    async with mallory_beside(tmp_path, **answers) as (alpha, beta):
        recorder = await Recorder.at(beta)
        await post_numbers(alpha, "beta", range(3))
        await recorder.until(3)
        await alpha.mail.send("orders", b"hello", to="mallory")
        await until_refused(alpha, "mallory")
        await post_numbers(alpha, "beta", range(3, 6))
        assert numbers_of(await recorder.until(6)) == list(range(6))
        await until_empty(alpha.mail, "beta")
        # What waits for that peer is kept.
        assert (await alpha.mail.statistics()).peers["mallory"].depth == 1


async def test_message_that_is_refused_a_thousand_times_is_one_dead_letter(tmp_path: Path) -> None:
    async with mallory_beside(tmp_path) as (alpha, _):
        await alpha.mail.send("orders", b"tea", to="mallory")
        await until_empty(alpha.mail, "mallory")
        await until_dead(alpha.mail, 1)
        (dead,) = await alpha.mail.dead_letters.list()
        assert (dead.message.body, dead.reason, dead.peer) == (b"tea", "unknown queue", "mallory")
