"""Streams packet by packet: in any order, doubled, lost, late, and with nodes that only send."""

from __future__ import annotations

import asyncio
import logging
import random
from itertools import count
from typing import Any

import pytest
from msgspec import UNSET

from postroad.services.errors import MoleculerError, RequestRejectedError, RequestTimeoutError
from postroad.services.kinds import VERSION
from postroad.services.packets import Request, Response, StreamProgress
from postroad.services.serializers import make_serializer
from postroad.services.stream_writer import StreamWriter
from postroad.services.streams import OBJECT_MODE, REPORTED, STREAM_ERROR
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import holds_for
from tests.support.services.stream_nodes import (
    Pair,
    RawPeer,
    Tape,
    joined,
    pair_of,
    raw_peer_of,
    values,
)
from tests.support.tiers import by_tier

NAMES: dict[str, Any] = {"ver": VERSION, "sender": "raw"}
IDLE_S = 0.4
"""Of streams that are given up."""
CHUNKS = [bytes([65 + number]) for number in range(10)]

_ids = count(1)


def request_parts(action: str, chunks: list[bytes] = CHUNKS, **fields: Any) -> list[Any]:
    """The packets of a request with a stream."""
    request = Request(id=f"raw-{next(_ids)}", action=action, **fields, **NAMES)
    return parts_of(request, chunks)


def response_parts(request: Request, chunks: list[bytes] = CHUNKS, **fields: Any) -> list[Any]:
    """The packets of a response that is a stream."""
    return parts_of(Response(id=request.id, success=True, **fields, **NAMES), chunks)


def parts_of(opening: Request | Response, chunks: list[bytes]) -> list[Any]:
    writer = StreamWriter(opening, make_serializer("JSON"))
    sent = [packet for chunk in chunks for packet in writer.chunks(chunk)]
    return [writer.opening, *sent, writer.end()]


async def called(pair: Pair, peer: RawPeer, **options: Any) -> tuple[asyncio.Task[Any], Request]:
    """A call of the near node that the peer has got."""
    call = asyncio.get_running_loop().create_task(pair.near.call("raw.run", **options))
    return call, await peer.until(Request)


# Whatever comes.


async def test_parts_of_a_request_in_any_order_and_number() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far) as peer:
        for seed in range(5):
            pair.files.seen.clear()
            parts = request_parts("files.put")
            for part in disordered(parts, seed):
                peer.send(part, "far")
            response = await peer.until(Response, lambda it, id=parts[0].id: it.id == id)  # type: ignore[misc]
            assert response.success
            assert pair.files.seen == CHUNKS, seed
        await pair.until_idle()


def disordered(parts: list[Any], seed: int) -> list[Any]:
    chance = random.Random(seed)
    parts = [*parts, *chance.sample(parts, 6)]
    chance.shuffle(parts)
    return parts


@pytest.mark.parametrize("seed", range(by_tier(test=2, nightly=10)))
async def test_parts_of_a_response_in_any_order_and_number(seed: int) -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.near) as peer:
        call, request = await called(pair, peer)
        for part in disordered(response_parts(request), seed):
            peer.send(part, "near")
        assert await joined(await call) == b"".join(CHUNKS)
        await pair.until_idle()


async def test_a_lost_part_of_a_request() -> None:
    async with pair_of(stream_idle_s=IDLE_S) as pair, raw_peer_of(pair, pair.far) as peer:
        parts = request_parts("files.put")
        for part in parts[:4] + parts[5:]:
            peer.send(part, "far")
        response = await peer.until(Response)
        assert not response.success
        assert pair.files.seen == CHUNKS[:3]
        assert isinstance(pair.files.failure, RequestTimeoutError)
        assert pair.files.failure.type == "STREAM_IDLE"
        await pair.until_idle()


async def test_a_lost_end_of_a_response() -> None:
    async with pair_of(stream_idle_s=IDLE_S) as pair, raw_peer_of(pair, pair.near) as peer:
        call, request = await called(pair, peer)
        for part in response_parts(request)[:-1]:
            peer.send(part, "near")
        stream = await call
        for chunk in CHUNKS:
            assert await anext(stream) == chunk
        with pytest.raises(RequestTimeoutError, match="nothing was heard from raw") as caught:
            await anext(stream)
        assert caught.value.type == "STREAM_IDLE"
        await pair.until_idle()


async def test_a_lost_beginning_of_a_response() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.near) as peer:
        call, request = await called(pair, peer, timeout_s=0.1)
        for part in response_parts(request)[1:]:
            peer.send(part, "near")
        with pytest.raises(RequestTimeoutError):
            await call
        await pair.until_idle()


async def test_parts_without_a_beginning_are_dropped_after_a_while() -> None:
    async with pair_of(stream_idle_s=IDLE_S) as pair, raw_peer_of(pair, pair.far) as peer:
        for part in request_parts("files.put")[1:]:
            peer.send(part, "far")
        await eventually(lambda: pair.streams_of(pair.far) == (1, 0), "they wait")
        await pair.until_idle()
        assert peer.of(Response) == []


async def test_late_parts_open_nothing() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far) as peer:
        parts = request_parts("files.put")
        for part in parts:
            peer.send(part, "far")
        await peer.until(Response)
        for part in parts:
            peer.send(part, "far")
        await holds_for(lambda: pair.streams_of(pair.far) == (0, 0), "nothing is open", 0.05)
        assert len(peer.of(Response)) == 1
        assert pair.files.seen == CHUNKS


async def test_late_parts_of_a_refused_request_open_nothing() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far) as peer:
        for part in request_parts("files.nothing"):
            peer.send(part, "far")
        response = await peer.until(Response)
        assert response.error is not UNSET
        assert response.error["name"] == "ServiceNotFoundError"
        await holds_for(lambda: len(peer.of(Response)) == 1, "one answer", 0.05)
        await pair.until_idle()


async def test_parts_from_another_node_do_not_count() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.near) as peer:
        call, request = await called(pair, peer)
        stranger = RawPeer(pair.hub, "stranger", "nodejs")
        await stranger._transporter.connect()
        writer = StreamWriter(
            Response(id=request.id, success=True, ver=VERSION, sender="stranger"),
            make_serializer("JSON"),
        )
        for part in (writer.opening, *writer.chunks(b"lies"), writer.end()):
            stranger.send(part, "near")
        for part in response_parts(request):
            peer.send(part, "near")
        assert await joined(await call) == b"".join(CHUNKS)
        await stranger.leave()


async def test_an_error_in_a_request() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far) as peer:
        parts = request_parts("files.put")
        error = {"name": "ValidationError", "message": "no", "code": 422, "retryable": False}
        last = Request(
            id=parts[0].id,
            action="files.put",
            params=None,
            headers={STREAM_ERROR: error},
            seq=3,
            **NAMES,
        )
        for part in (*parts[:3], last):
            peer.send(part, "far")
        response = await peer.until(Response)
        assert response.error is not UNSET
        assert response.error["name"] == "ValidationError"
        assert pair.files.seen == CHUNKS[:2]


async def test_a_chunk_of_the_wrong_sort() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far) as peer:
        opening, *_ = request_parts("files.put")
        peer.send(opening, "far")
        wrong = Request(
            id=opening.id, action="files.put", params={"a": 1}, stream=True, seq=1, **NAMES
        )
        peer.send(wrong, "far")
        response = await peer.until(Response)
        assert response.error is not UNSET
        assert response.error["type"] == "STREAM_BAD_CHUNK"


async def test_a_node_in_a_new_life_breaks_its_streams() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.near) as peer:
        call, request = await called(pair, peer)
        for part in response_parts(request)[:3]:
            peer.send(part, "near")
        stream = await call
        peer.restart("near")
        with pytest.raises(RequestRejectedError, match="Stream closed by raw"):
            await joined(stream)


# Nodes of the original system.


async def test_what_a_node_of_the_original_system_gets() -> None:
    """The packets of a stream as in the original, and nothing that it does not know."""
    async with pair_of() as pair, raw_peer_of(pair, pair.near) as peer:
        call, _ = await called(
            pair,
            peer,
            params={"a": 1},
            meta={"by": "me"},
            headers={"h": 1},
            stream=values(b"one", b"two"),
        )
        last = await peer.until(Request, lambda it: it.stream is False)
        sent = peer.of(Request)
        assert [it.seq for it in sent] == [0, 1, 2, 3]
        assert [it.stream for it in sent] == [True, True, True, False]
        assert [it.params for it in sent] == [{"a": 1}, b"one", b"two", None]
        assert [it.meta for it in sent] == [{"by": "me"}, {}, {}, {}]
        assert all(it.headers == {"h": 1} for it in sent)
        peer.send(Response(id=last.id, success=True, data="done", **NAMES), "near")
        assert await call == "done"
        assert peer.of(StreamProgress) == []


async def test_what_a_node_of_the_original_system_gets_as_a_response() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far) as peer:
        pair.files.tape = Tape(2, {"v": 1})
        request = Request(id="r", action="files.play", params={"objects": True}, **NAMES)
        peer.send(request, "far")
        await peer.until(Response, lambda it: it.stream is False)
        sent = peer.of(Response)
        assert [it.seq for it in sent] == [0, 1, 2, 3]
        assert [it.data for it in sent] == [None, {"v": 1}, {"v": 1}, None]
        assert all(it.success for it in sent)
        assert all(it.meta == {"told": "by files"} for it in sent)
        assert all(it.headers == {OBJECT_MODE: True} for it in sent)
        assert peer.of(StreamProgress) == []


async def test_an_error_comes_when_a_node_of_the_original_system_can_hear_it() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far) as peer:
        pair.files.tape = Tape(0, b"", ValueError("at once"))
        loop = asyncio.get_running_loop()
        peer.send(Request(id="r", action="files.get", **NAMES), "far")
        await peer.until(Response, lambda it: it.seq == 0)
        opened_at = loop.time()
        last = await peer.until(Response, lambda it: it.stream is False)
        assert loop.time() - opened_at > 0.03
        assert not last.success
        assert last.error is not UNSET
        assert last.error["message"] == "at once"


async def test_a_node_of_the_original_system_is_never_told_what_was_read() -> None:
    """Not even if it seems to ask for it: over TCP it would die of a packet it does not know."""
    async with pair_of() as pair, raw_peer_of(pair, pair.far) as peer:
        for part in request_parts("files.put", [b"x"] * 40, headers={REPORTED: True}):
            peer.send(part, "far")
        alive = StreamProgress(id="no such", is_request=True, sent=5, **NAMES)
        peer.send(alive, "far")
        await peer.until(Response)
        for part in request_parts("files.ignore", [b"x"], headers={REPORTED: True})[:-1]:
            peer.send(part, "far")
        await eventually(lambda: len(peer.of(Response)) == 2, "both are answered")
        await pair.until_idle()
        assert peer.of(StreamProgress) == []


async def test_a_sender_that_cannot_be_slowed_down_overflows() -> None:
    settings: dict[str, Any] = {"stream_bytes_max": 100_000}
    async with pair_of(**settings) as pair, raw_peer_of(pair, pair.far) as peer:
        parts = request_parts("files.hold", [bytes(20_000)] * 10)
        for part in parts:
            peer.send(part, "far")
        await eventually(lambda: pair.files.seen, "the action reads")
        pair.files.gate.set()
        response = await peer.until(Response)
        assert response.error is not UNSET
        assert response.error["type"] == "STREAM_OVERFLOW"
        assert 1 <= len(pair.files.seen) <= 7
        await pair.until_idle()


async def test_all_streams_together_overflow() -> None:
    settings: dict[str, Any] = {"streams_bytes_max": 100_000}
    async with pair_of(**settings) as pair, raw_peer_of(pair, pair.near) as peer:
        streams = []
        for number in range(3):
            call = asyncio.ensure_future(pair.near.call("raw.run", number))
            request = await peer.until(Request, lambda it, n=number: it.params == n)  # type: ignore[misc]
            for part in response_parts(request, [bytes(20_000)] * 2)[:-1]:
                peer.send(part, "near")
            streams.append(await call)
        await eventually(lambda: pair.bytes_waiting(pair.near) >= 100_000, "they came")
        assert pair.bytes_waiting(pair.near) <= 120_000
        with pytest.raises(MoleculerError, match="were not read in time"):
            await joined(streams[2])
        for stream in streams:
            await stream.aclose()
        await pair.until_idle()


async def test_a_node_of_the_original_system_goes_on_after_the_end() -> None:
    """It cannot be told to stop, so the rest is dropped."""
    async with pair_of() as pair, raw_peer_of(pair, pair.near) as peer:
        call, request = await called(pair, peer)
        parts = response_parts(request)
        for part in parts[:3]:
            peer.send(part, "near")
        stream = await call
        assert await anext(stream) == CHUNKS[0]
        await stream.aclose()
        for part in parts[3:]:
            peer.send(part, "near")
        await pair.until_idle()
        assert peer.of(StreamProgress) == []


async def test_an_answer_does_not_end_the_stream_to_a_node_of_the_original_system() -> None:
    """Its action may read on in the background."""
    async with pair_of() as pair, raw_peer_of(pair, pair.near) as peer:
        tape = Tape(3, b"x")
        call, request = await called(pair, peer, stream=tape.play())
        peer.send(Response(id=request.id, success=True, data=1, **NAMES), "near")
        assert await call == 1
        last = await peer.until(Request, lambda it: it.stream is False)
        assert STREAM_ERROR not in last.headers
        assert tape.given == 3


# Nodes of this package.


async def test_nodes_of_this_package_tell_what_they_read() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far, client="postroad") as peer:
        parts = request_parts("files.put", [b"x"] * 40, headers={REPORTED: True})
        for part in parts[:-1]:
            peer.send(part, "far")
        told = await peer.until(StreamProgress, lambda it: it.received == 40)
        assert told.is_request
        assert not told.is_cancelled
        assert told.arrived == 40
        assert len(peer.of(StreamProgress)) <= 6
        peer.send(parts[-1], "far")
        await peer.until(Response)


async def test_headers_between_nodes_of_this_package_are_not_seen(pair: Pair) -> None:
    ctx = pair.near.context(headers={})
    pair.files.tape = Tape(1, b"x")
    await joined(await ctx.call("files.get"))
    assert REPORTED not in ctx.response_headers


async def test_a_sign_of_life_of_an_unknown_stream_is_answered_with_a_stop() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far, client="postroad") as peer:
        peer.send(StreamProgress(id="no such", is_request=True, sent=5, **NAMES), "far")
        told = await peer.until(StreamProgress)
        assert told.is_cancelled
        assert (told.id, told.is_request) == ("no such", True)


async def test_a_sign_of_life_is_answered_with_what_was_read() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far, client="postroad") as peer:
        parts = request_parts("files.put", [b"x"] * 3, headers={REPORTED: True})
        for part in parts[:-1]:
            peer.send(part, "far")
        await eventually(lambda: len(pair.files.seen) == 3, "all is read")
        await peer.until(StreamProgress, lambda it: it.received == 3)
        peer.packets.clear()
        peer.send(StreamProgress(id=parts[0].id, is_request=True, sent=3, **NAMES), "far")
        told = await peer.until(StreamProgress)
        assert (told.arrived, told.received) == (3, 3)


async def test_signs_of_life_do_not_hide_a_lost_part() -> None:
    async with (
        pair_of(stream_idle_s=IDLE_S) as pair,
        raw_peer_of(pair, pair.far, client="postroad") as peer,
    ):
        parts = request_parts("files.put", [b"x"] * 3, headers={REPORTED: True})
        for part in parts[:2]:
            peer.send(part, "far")
        alive = StreamProgress(id=parts[0].id, is_request=True, sent=3, **NAMES)
        while not peer.of(Response):
            peer.send(alive, "far")
            await asyncio.sleep(0.02)
        assert isinstance(pair.files.failure, RequestTimeoutError)
        assert any(it.is_cancelled for it in peer.of(StreamProgress))


async def test_a_silent_reader_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"stream_idle_s": 1.0}
    async with (
        pair_of(**settings) as pair,
        raw_peer_of(pair, pair.near, client="postroad") as peer,
    ):
        tape = Tape(1_000, b"x")
        with caplog.at_level(logging.CRITICAL, "postroad.services"):
            call, _ = await called(pair, peer, stream=tape.play())
            last = await peer.until(Request, lambda it: it.stream is False)
        assert last.headers[STREAM_ERROR]["type"] == "STREAM_IDLE"
        assert tape.given == 64 + 1
        assert tape.is_closed
        assert any(it.sent == 64 for it in peer.of(StreamProgress))
        call.cancel()


async def test_reports_about_nothing_do_no_harm() -> None:
    async with pair_of() as pair, raw_peer_of(pair, pair.far, client="postroad") as peer:
        for told in ({"received": 5}, {"is_cancelled": True}, {}):
            packet = StreamProgress(id="no such", is_request=False, **told, **NAMES)
            peer.send(packet, "far")
        pair.files.tape = Tape(1, b"x")
        assert await joined(await pair.near.call("files.get")) == b"x"
        assert pair.far.statistics()["transit"]["failures"] == 0
