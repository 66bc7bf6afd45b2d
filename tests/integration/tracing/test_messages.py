"""Spans of messages between nodes, and what of them is in the frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroad.core import tracing
from postroad.core.errors import RemoteHandlerError
from postroad.core.tracing import SpanKind
from postroad.net import Limits, MessagingService, ProtocolConfig, RawMessage
from tests.support.deadlines import DEADLINE_S

from .traces import begun, recording, trace_ids

SUBJECT = "price"


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[MessagingService, MessagingService]]:
    async with (
        MessagingService("test", "alpha", **options) as alpha,
        MessagingService("test", "beta", **options) as beta,
    ):
        yield alpha, beta


async def test_a_request_is_a_span_at_either_node() -> None:
    async with recording("alpha", "beta") as traces, pair() as (alpha, beta):
        beta.serve(SUBJECT, lambda message: b"7")
        assert await alpha.request(beta.address, SUBJECT, b"tea") == b"7"
        sent, served = traces.line("net: request price @alpha", "net: handle price @beta")
        assert (sent.kind, served.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
        assert (sent.peer, served.peer) == (str(beta.address), "alpha")
        assert sent.start_ns <= served.start_ns and sent.parent_id is None
        assert len(traces.all()) == 2


async def test_what_a_handler_sends_is_part_of_it() -> None:
    async with recording("alpha", "beta") as traces, pair() as (alpha, beta):
        heard = asyncio.Event()

        async def price(message: RawMessage) -> bytes:
            await asyncio.sleep(0)
            await beta.send(alpha.address, "asked", b"")
            return b"7"

        beta.serve(SUBJECT, price)
        alpha.subscribe("asked", lambda message: heard.set())
        await alpha.request(beta.address, SUBJECT)
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        spans = traces.line(
            "net: request price @alpha",
            "net: handle price @beta",
            "net: send asked @beta",
            "net: handle asked @alpha",
        )
        assert [it.kind for it in spans[2:]] == [SpanKind.PRODUCER, SpanKind.CONSUMER]


async def test_requests_at_the_same_time_are_traces_of_their_own() -> None:
    async with recording("alpha", "beta") as traces, pair() as (alpha, beta):

        async def price(message: RawMessage) -> bytes:
            await asyncio.sleep(0)
            return (tracing.current_span_context() or pytest.fail("no span")).trace_id.encode()

        beta.serve(SUBJECT, price)
        asked = [alpha.request(beta.address, SUBJECT) for _ in range(50)]
        assert len({*await asyncio.gather(*asked)}) == 50
        assert len(trace_ids(traces.all())) == 50


async def test_a_failure_is_seen_at_either_node() -> None:
    async with recording("alpha", "beta") as traces, pair() as (alpha, beta):

        async def fail(message: RawMessage) -> bytes:
            raise ValueError("no tea")

        def fail_at_once(message: RawMessage) -> bytes:
            raise ValueError("no tea")

        beta.serve(SUBJECT, fail)
        beta.serve("other", fail_at_once)
        for subject in (SUBJECT, "other"):
            with pytest.raises(RemoteHandlerError):
                await alpha.request(beta.address, subject)
            asked, served = traces.line(
                f"net: request {subject} @alpha", f"net: handle {subject} @beta"
            )
            assert asked.code == RemoteHandlerError.code
            assert asked.error is not None and "no tea" in asked.error
            assert served.error is not None and "no tea" in served.error


async def test_a_message_to_oneself() -> None:
    async with recording("alpha") as traces, pair() as (alpha, _):
        heard = asyncio.Event()
        alpha.serve(SUBJECT, lambda message: b"7")
        alpha.subscribe("asked", lambda message: heard.set())
        await alpha.request(alpha.address, SUBJECT)
        await alpha.send(alpha.address, "asked")
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        traces.line("net: request price @alpha", "net: handle price @alpha")
        traces.line("net: send asked @alpha", "net: handle asked @alpha")


async def test_what_nodes_tell_each_other_by_themselves_is_not_traced() -> None:
    async with recording("alpha", "beta") as traces, pair() as (alpha, beta):
        beta.serve("cluster.something", lambda message: b"")
        await alpha.request(beta.address, "cluster.something")
        assert traces.all() == []


async def test_a_message_as_large_as_can_be_is_carried_without_a_context() -> None:
    limits = Limits(frame_bytes_max=4096)
    async with recording("alpha", "beta") as traces, pair(limits=limits) as (alpha, beta):
        beta.serve(SUBJECT, lambda message: message.payload)
        payload = bytes(4096 - len(SUBJECT))
        assert await alpha.request(beta.address, SUBJECT, payload) == payload
        assert traces.find("net: handle price @beta").parent_id is None


@pytest.mark.parametrize(
    "protocol",
    [ProtocolConfig(version_max=2), ProtocolConfig(profile="zeebe")],
    ids=["documented", "zeebe"],
)
async def test_older_peers_are_told_nothing(protocol: ProtocolConfig) -> None:
    async with recording("alpha", "beta") as traces, pair(protocol=protocol) as (alpha, beta):
        beta.serve(SUBJECT, lambda message: message.payload)
        assert await alpha.request(beta.address, SUBJECT, b"tea") == b"tea"
        asked = traces.find("net: request price @alpha")
        served = traces.find("net: handle price @beta")
        assert served.parent_id is None and served.trace_id != asked.trace_id


async def test_a_node_that_records_nothing_is_told_nothing() -> None:
    """And what it answers is right, although the other one traces."""
    async with pair() as (alpha, beta):
        beta.serve(SUBJECT, lambda message: message.payload)
        # They know each other before anybody records.
        assert await alpha.request(beta.address, SUBJECT, b"tea") == b"tea"
        async with recording("alpha") as traces:
            with begun("alpha"):
                assert await alpha.request(beta.address, SUBJECT, b"tea") == b"tea"
            traces.line("test: begin @alpha", "net: request price @alpha")
