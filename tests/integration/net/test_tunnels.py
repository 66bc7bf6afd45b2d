"""What goes through tunnels: both ways, in order, in any size and amount."""

import asyncio

import pytest

from postroad.core.errors import ConnectionClosedError, MessageTooLargeError, Outcome, UsageError
from postroad.core.limits import KIB, MIB
from postroad.net import Tunnel
from postroad.wire import RequestFrame
from tests.support.deadlines import eventually
from tests.support.net.peers import resident_bytes, stays, subscribe_usual, turns
from tests.support.net.raw_peers import both_loops
from tests.support.wire.tunnel_ends import Recorder, running_tunnels

SMALL_BUFFERS = {"write_buffer_bytes_max": 64 * KIB}


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


@both_loops
async def test_messages_go_both_ways_in_order() -> None:
    async with running_tunnels() as pair:
        near, far = await pair.open()
        for value in range(3_000):
            near.tunnel.send_nowait(f"subject-{value % 5}", number(value))
            far.tunnel.send_nowait("back", number(value))
            if value % 500 == 0:
                await asyncio.sleep(0)
        await eventually(lambda: len(near.payloads) == len(far.payloads) == 3_000)
        assert near.payloads == far.payloads == [number(value) for value in range(3_000)]
        assert far.subjects == [f"subject-{value % 5}" for value in range(3_000)]
        assert far.batches < 1_000, "what is posted together arrives together"
        assert near.reasons == far.reasons == []


@both_loops
async def test_a_chain_of_messages_goes_through_users() -> None:
    async with running_tunnels() as pair:
        near, far = await pair.open()
        done = asyncio.Event()

        def answer(user: Recorder, requests: list[RequestFrame]) -> None:
            for request in requests:
                value = int.from_bytes(request.payload, "big")
                if value == 500:
                    done.set()
                else:
                    user.tunnel.send_nowait(request.subject, number(value + 1))

        near.on_received = lambda requests: answer(near, requests)
        far.on_received = lambda requests: answer(far, requests)
        near.tunnel.send_nowait("chain", number(0))
        await asyncio.wait_for(done.wait(), 60)
        assert len(near.payloads) + len(far.payloads) == 501


async def test_tunnel_messages_of_one_iteration_leave_in_one_write() -> None:
    async with running_tunnels() as pair:
        near, far = await pair.open()
        await turns()
        before = near.tunnel.bytes_sent
        near.tunnel.send_nowait("news", b"one")
        near.tunnel.send_nowait("news", b"two")
        assert near.tunnel.bytes_sent == before
        await eventually(lambda: far.payloads)
        assert (far.payloads, far.batches) == ([b"one", b"two"], 1)
        before = near.tunnel.bytes_sent
        for _ in range(100):
            near.tunnel.send_nowait("news", bytes(1_000))
        assert near.tunnel.bytes_sent > before + 60_000


@both_loops
async def test_large_messages_both_ways() -> None:
    async with running_tunnels() as pair:
        near, far = await pair.open()
        payloads = [bytes([size % 251]) * size for size in (1, 65_515, 65_536, 300_000, 3 * MIB, 5)]
        for payload in payloads:
            near.tunnel.send_nowait("bulk", payload)
            far.tunnel.send_nowait("bulk", payload)
        await eventually(lambda: len(near.payloads) == len(far.payloads) == len(payloads))
        assert near.payloads == far.payloads == payloads


@both_loops
async def test_a_user_may_post_while_it_is_given_the_tunnel() -> None:
    """The other end has only just said hello; a large message may be the next thing it hears."""
    async with running_tunnels() as pair:
        payload = bytes(range(256)) * 8_000

        def greet(tunnel: Tunnel) -> Recorder:
            recorder = pair.server_users(tunnel)
            recorder.tunnel.send_nowait("early", b"first")
            recorder.tunnel.send_nowait("early", payload)
            recorder.tunnel.send_nowait("early", b"last")
            return recorder

        pair.server.tunnels.stop_accepting()
        pair.server.tunnels.accept(greet)
        near, far = await pair.open()
        await eventually(lambda: len(near.payloads) == 3)
        assert near.payloads == [b"first", payload, b"last"]

        def greet_back(tunnel: Tunnel) -> Recorder:
            recorder = pair.users(tunnel)
            recorder.tunnel.send_nowait("early", payload)
            return recorder

        await pair.client.tunnels.open(pair.server.address, greet_back)
        await eventually(
            lambda: pair.server_users.last is not far and pair.server_users.last.payloads
        )
        assert pair.server_users.last.payloads == [payload]


async def test_requests_of_the_service_go_on_beside_tunnels() -> None:
    async with running_tunnels() as pair:
        subscribe_usual(pair.server)
        near, far = await pair.open()
        near.tunnel.send_nowait("echo", b"through the tunnel")
        assert await pair.client.request(pair.server.address, "echo", b"beside") == b"beside"
        await eventually(lambda: far.payloads)
        assert near.payloads == []


# Limits.


async def test_a_message_must_not_be_larger_than_the_peer_takes() -> None:
    async with running_tunnels(server_limits={"frame_bytes_max": 1_000}) as pair:
        near, far = await pair.open()
        assert near.tunnel.send_bytes_max == 1_000
        assert far.tunnel.send_bytes_max == 4 * MIB
        near.tunnel.send_nowait("four", bytes(996))
        with pytest.raises(MessageTooLargeError, match="1001 bytes exceeds the 1000"):
            near.tunnel.send_nowait("four", bytes(997))
        near.tunnel.send_nowait("", bytes(1_000))
        await eventually(lambda: len(far.payloads) == 2)
        assert near.tunnel.messages_sent == 2


async def test_subject_must_be_short_and_text() -> None:
    async with running_tunnels() as pair:
        near, far = await pair.open()
        with pytest.raises(MessageTooLargeError, match="subject cannot be longer than 32767"):
            near.tunnel.send_nowait("s" * 32_768, b"")
        with pytest.raises(UsageError, match="cannot be encoded"):
            near.tunnel.send_nowait("\ud800", b"")
        near.tunnel.send_nowait("s" * 32_767, b"long")
        near.tunnel.send_nowait("käse", b"")
        await eventually(lambda: len(far.payloads) == 2)
        assert far.subjects == ["s" * 32_767, "käse"]


async def test_nothing_can_be_posted_on_a_closed_tunnel() -> None:
    async with running_tunnels() as pair:
        near, far = await pair.open()
        near.tunnel.close("enough")
        assert not near.tunnel.can_send
        with pytest.raises(ConnectionClosedError, match="is closed") as caught:
            near.tunnel.send_nowait("news", b"")
        assert caught.value.outcome is Outcome.NOT_SENT
        await eventually(lambda: far.reasons)
        with pytest.raises(ConnectionClosedError, match="is closed"):
            far.tunnel.send_nowait("news", bytes(1 * MIB))


# A peer that does not read.


@both_loops
async def test_tunnel_full_and_drained_buffer_notify_handler() -> None:
    async with running_tunnels(client_limits=SMALL_BUFFERS) as pair:
        near, far = await pair.open()
        assert far.tunnel.transport is not None
        far.tunnel.transport.pause_reading()
        posted = 0
        while near.tunnel.can_send:
            near.tunnel.send_nowait("flood", number(posted) + bytes(10_000))
            posted += 1
            if posted % 10 == 0:
                await asyncio.sleep(0)
            assert posted < 10_000, "somebody must stop"
        await stays(lambda: not near.tunnel.can_send)
        assert near.rooms == 0

        near.tunnel.send_nowait("flood", number(posted) + bytes(10_000))
        far.tunnel.transport.resume_reading()
        await eventually(lambda: len(far.payloads) == posted + 1)
        assert [payload[:4] for payload in far.payloads] == [*map(number, range(posted + 1))]
        assert near.tunnel.can_send
        assert near.rooms >= 1


async def test_tunnel_buffer_holds_only_unsent_messages() -> None:
    async with running_tunnels(client_limits=SMALL_BUFFERS) as pair:
        near, far = await pair.open()
        assert far.tunnel.transport is not None
        far.tunnel.transport.pause_reading()
        before = resident_bytes()
        payload = bytes(50_000)
        for _ in range(100_000):
            if not near.tunnel.can_send:
                break
            near.tunnel.send_nowait("flood", payload)
            await asyncio.sleep(0)
        assert near.tunnel.transport is not None
        assert near.tunnel.transport.get_write_buffer_size() < 64 * KIB + 2 * len(payload)
        assert resident_bytes() - before < 30 * MIB
        far.tunnel.transport.resume_reading()


@both_loops
async def test_simultaneous_fast_senders_do_not_deadlock() -> None:
    async with running_tunnels(client_limits=SMALL_BUFFERS, server_limits=SMALL_BUFFERS) as pair:
        users = await pair.open()
        sent = [0, 0]

        def pump(index: int) -> None:
            tunnel = users[index].tunnel
            while tunnel.can_send and sent[index] < 3_000:
                tunnel.send_nowait("flood", number(sent[index]) + bytes(5_000))
                sent[index] += 1

        for index, user in enumerate(users):
            user.on_room = lambda index=index: pump(index)
            pump(index)
        await eventually(lambda: all(len(user.payloads) == 3_000 for user in users))
        for user in users:
            assert [payload[:4] for payload in user.payloads] == [*map(number, range(3_000))]


# Looking inside.


async def test_counters() -> None:
    async with running_tunnels() as pair:
        near, far = await pair.open()
        for _ in range(10):
            near.tunnel.send_nowait("news", bytes(100))
        far.tunnel.send_nowait("news", b"")
        await eventually(lambda: len(far.payloads) == 10 and near.payloads)
        assert (near.tunnel.messages_sent, near.tunnel.messages_received) == (10, 1)
        assert (far.tunnel.messages_sent, far.tunnel.messages_received) == (1, 10)
        await turns()
        assert near.tunnel.bytes_sent == far.tunnel.bytes_received > 1_000
        assert far.tunnel.bytes_sent == near.tunnel.bytes_received
        for service in (pair.client, pair.server):
            assert service.statistics().tunnels == 1
        assert (
            pair.client.statistics().client_connections
            == pair.server.statistics().server_connections
            == 1
        )
        assert pair.server.statistics().bytes_received == near.tunnel.bytes_sent

        near.tunnel.close("enough")
        await eventually(lambda: far.reasons and near.reasons)
        statistics = pair.server.statistics()
        assert (statistics.tunnels, statistics.server_connections) == (0, 0)
        assert statistics.tunnel_messages_received == 10
        assert statistics.tunnel_messages_sent == 1
        assert statistics.bytes_received == far.tunnel.bytes_received
        assert statistics.connections_lost == pair.client.statistics().connections_lost == 0
        assert pair.client.statistics().connections_opened == 1


async def test_tunnel_repr_names_peer_and_state() -> None:
    async with running_tunnels() as pair:
        near, far = await pair.open()
        assert (near.tunnel.peer.name, far.tunnel.peer.name) == ("core-1", "satellite-1")
        assert (near.tunnel.peer.role, near.tunnel.peer.zone) == ("core", "north")
        assert far.tunnel.peer.role == "satellite"
        assert repr(near.tunnel) == f"<Tunnel {pair.server.address} (core-1) open>"
        near.tunnel.close("enough")
        await near.tunnel.wait_closed()
        assert repr(near.tunnel) == f"<Tunnel {pair.server.address} (core-1) closed>"


async def test_users_learn_the_round_trip_on_a_busy_tunnel() -> None:
    """Neither end is ever quiet, so that heartbeats alone would measure nothing."""
    beating = {"heartbeat_interval_s": 0.05, "heartbeat_timeout_s": 5.0}
    async with running_tunnels(client_limits=beating, server_limits=beating) as pair:
        near, far = await pair.open()
        await eventually(lambda: near.tunnel.round_trip_s is not None)
        await eventually(lambda: far.tunnel.round_trip_s is not None)
        far.on_received = lambda requests: far.tunnel.send_nowait("back", requests[0].payload)
        # A time no round trip here can have.
        near.tunnel.wire._heartbeats.round_trip_s = 1e9

        def is_measured_anew() -> bool:
            near.tunnel.send_nowait("busy", b"")
            return near.tunnel.round_trip_s != 1e9

        await eventually(is_measured_anew)
        assert near.tunnel.round_trip_s is not None
