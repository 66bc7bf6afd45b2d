"""Tunnels with peers that are no Postroad nodes: what they send costs their own tunnel only."""

import asyncio

import pytest

from postroad.core.errors import MalformedFrameError, UnexpectedFrameError
from tests.support.deadlines import eventually
from tests.support.net.peers import nothing_left
from tests.support.net.raw_peers import both_loops
from tests.support.net.scripts import RawPeer, RawServer
from tests.support.wire import tunnel_ends
from tests.support.wire.pairs import version3_frame

NEWS = version3_frame(1, b"news" + b"fine", short=4)
LARGE = bytes(range(256)) * 2_000
BULK = version3_frame(1, b"bulk" + LARGE, short=4)

BAD: dict[str, tuple[bytes, int]] = {
    "a reply": (version3_frame(2, b"payload", id=7), UnexpectedFrameError.code),
    "a cancel": (version3_frame(4, id=7), UnexpectedFrameError.code),
    "a second hello": (tunnel_ends.raw_part("raw", role="core"), UnexpectedFrameError.code),
    "an unknown frame": (version3_frame(99), MalformedFrameError.code),
    "garbage": (b"GET / HTTP/1.1\r\n\r\n" * 4, 0),
    "a subject that is no text": (
        version3_frame(1, b"\xff", short=1, id=3),
        MalformedFrameError.code,
    ),
    "a compressed message": (
        version3_frame(1, b"news" + bytes(20), flags=2, short=4),
        MalformedFrameError.code,
    ),
}
bad_frames = pytest.mark.parametrize("kind", BAD)


async def goodbye_of(peer: RawPeer) -> int:
    """The code of the goodbye before the service closes; all else it says is heartbeats."""
    while True:
        kind, _, _, code, _, _ = await peer.read_frame()
        assert kind in (5, 6, 7)
        if kind == 7:
            await peer.read_to_end()
            return code


async def check_that_others_live(pair: tunnel_ends.TunnelPair) -> None:
    near, far = await pair.open()
    near.tunnel.send_nowait("still", b"here")
    await eventually(lambda: far.payloads == [b"here"])


@bad_frames
async def test_tunnel_client_frame_not_allowed_closes_connection(kind: str) -> None:
    data, code = BAD[kind]
    async with tunnel_ends.running_tunnels() as pair:
        bystander, _ = await pair.open()
        with await tunnel_ends.raw_tunnel(pair.server.address) as peer:
            user = pair.server_users.last
            await peer.write(NEWS + data + NEWS)
            reason = await goodbye_of(peer)
            assert code in (0, reason)
        await eventually(lambda: user.reasons)
        assert user.payloads == [b"fine"], "what was before still counts"
        assert len(user.reasons) == 1 and "connection closed: " in user.reasons[0]
        assert pair.server.statistics().protocol_errors == 1
        assert bystander.tunnel.is_open
        await check_that_others_live(pair)


@bad_frames
async def test_tunnel_server_frame_not_allowed_closes_connection(kind: str) -> None:
    data, code = BAD[kind]
    reasons: list[int] = []

    async def misbehave(peer: RawPeer) -> None:
        await tunnel_ends.serve_raw_tunnel(peer, NEWS)
        await peer.write(data)
        reasons.append(await goodbye_of(peer))

    async with RawServer(misbehave) as server, tunnel_ends.running_tunnels() as pair:
        tunnel = await pair.client.tunnels.open(server.address, pair.users)
        user = pair.users.last
        await tunnel.wait_closed()
        await eventually(lambda: reasons)
        assert code in (0, reasons[0])
        assert user.payloads == [b"fine"]
        assert len(user.reasons) == 1
        await check_that_others_live(pair)


async def test_garbage_right_after_the_hello() -> None:
    async with tunnel_ends.running_tunnels() as pair, nothing_left():
        bad = [NEWS, version3_frame(99)]
        with await tunnel_ends.raw_tunnel(pair.server.address, *bad, is_taken=False) as peer:
            assert await goodbye_of(peer) == MalformedFrameError.code
        user = pair.server_users.last
        await eventually(lambda: user.reasons)
        assert (user.payloads, len(user.reasons)) == ([b"fine"], 1)
        await eventually(lambda: pair.server.statistics().server_connections == 0)


async def test_ignored_flags_do_not_close_the_tunnel() -> None:
    async with tunnel_ends.running_tunnels() as pair:
        with await tunnel_ends.raw_tunnel(pair.server.address) as peer:
            user = pair.server_users.last
            await peer.write(version3_frame(1, b"news" + b"1", flags=1, short=4, word=5, id=9))
            await eventually(lambda: user.payloads == [b"1"])
            assert user.tunnel.is_open


@both_loops
async def test_tunnel_messages_with_client_hello_are_received() -> None:
    async with tunnel_ends.running_tunnels() as pair:
        with await tunnel_ends.raw_tunnel(pair.server.address, NEWS, BULK, NEWS) as peer:
            user = pair.server_users.last
            await eventually(lambda: len(user.payloads) == 3)
            assert user.payloads == [b"fine", LARGE, b"fine"]
            await peer.write(BULK * 2 + NEWS)
            await eventually(lambda: len(user.payloads) == 6)
            assert user.payloads[3:] == [LARGE, LARGE, b"fine"]
            # The handshake's six bytes count too.
            expected = 6 + len(tunnel_ends.raw_part("raw", role="satellite", is_tunnel=True))
            assert user.tunnel.bytes_received == expected + 3 * len(NEWS + BULK)


@both_loops
async def test_tunnel_messages_with_server_hello_are_received() -> None:
    async def speak_first(peer: RawPeer) -> None:
        await tunnel_ends.serve_raw_tunnel(peer, NEWS, BULK, NEWS)
        await asyncio.Event().wait()

    async with tunnel_ends.running_tunnels() as pair, RawServer(speak_first) as server:
        await pair.client.tunnels.open(server.address, pair.users)
        user = pair.users.last
        await eventually(lambda: len(user.payloads) == 3)
        assert user.payloads == [b"fine", LARGE, b"fine"]


async def test_bytes_one_by_one() -> None:
    async with tunnel_ends.running_tunnels() as pair:
        with await tunnel_ends.raw_tunnel(pair.server.address) as peer:
            user = pair.server_users.last
            for byte in NEWS * 3:
                await peer.write(bytes([byte]))
                await asyncio.sleep(0)
            await eventually(lambda: user.payloads == [b"fine"] * 3)


async def test_a_tunnel_is_never_answered() -> None:
    async with tunnel_ends.running_tunnels() as pair:
        pair.server.serve("news", lambda message: message.payload)
        with await tunnel_ends.raw_tunnel(pair.server.address) as peer:
            user = pair.server_users.last
            await peer.write(NEWS)
            await eventually(lambda: user.payloads)
            await peer.write(version3_frame(5, id=77))
            kind, _, _, _, id, _ = await peer.read_frame()
            assert (kind, id) == (6, 77)
        assert pair.server.statistics().requests_received == 0
