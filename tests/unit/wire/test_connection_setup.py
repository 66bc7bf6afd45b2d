"""The secret of a cluster on a connection: who knows it is let in, whatever else somebody knows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from postroad import wire
from postroad.core import errors
from tests.support.cases import each
from tests.support.wire.pairs import (
    CLIENT_ADDRESS,
    Pair,
    Side,
    byte_by_byte,
    cut_version3,
    make_config,
    server_config,
    version3_frame,
    whole,
)

SECRET = "correct horse battery staple"
OTHER = "another secret of some length"
OPENED = [wire.ConnectionOpened(3)]
HELLO, GOODBYE, PROOF = 3, 7, 8


def proving_pair(
    client: wire.WireConfig | None = None, server: wire.WireConfig | None = None
) -> Pair:
    return Pair(client or make_config(secret=SECRET), server or server_config(secret=SECRET))


def kinds(data: bytes) -> list[int]:
    return [frame.kind for frame in cut_version3(data)]


@pytest.mark.parametrize("split", [whole, byte_by_byte])
def test_peers_with_the_same_secret_connect(split: Callable[[bytes], Sequence[bytes]]) -> None:
    pair = proving_pair()
    pair.settle(split)
    assert pair.client.events == pair.server.events == OPENED
    assert pair.client.machine.peer is not None
    assert pair.client.machine.peer.name == "server"
    assert pair.server.machine.peer is not None
    assert pair.server.machine.peer.name == "client"
    assert SECRET.encode() not in pair.client.written + pair.server.written
    pair.client.machine.request(1, "echo", b"x", 0)
    pair.settle(split)
    assert pair.server.events[1:] == [wire.RequestFrame(1, "echo", b"x")]


def test_certificate_and_secret_are_both_required() -> None:
    names = frozenset({"client"})
    pair = Pair(make_config(secret=SECRET), server_config(secret=SECRET), client_names=names)
    pair.settle()
    assert pair.server.events == OPENED
    pair = Pair(make_config(secret=OTHER), server_config(secret=SECRET), client_names=names)
    pair.settle()
    assert isinstance(pair.server.failure, errors.HandshakeRejectedError)
    pair = Pair(
        make_config(secret=SECRET), server_config(secret=SECRET), client_names=frozenset("x")
    )
    pair.settle()
    assert "certificate" in str(pair.server.failure)


def test_server_reveals_nothing_to_a_client_without_proof() -> None:
    server = Side(wire.ConnectionRole.SERVER, server_config(secret=SECRET))
    client = Side(wire.ConnectionRole.CLIENT, make_config(secret=OTHER))
    server.give(client.take())
    client.give(server.take())
    server.give(client.take())
    assert kinds(server.take()) == [GOODBYE]
    assert kinds(server.written[2:]) == [HELLO, GOODBYE]


@each(
    (SECRET, OTHER, "has another cluster secret"),
    (SECRET, None, "'client' at 127.0.0.1:27998 has none: set node.secret"),
    (None, SECRET, "'server' at 127.0.0.1:26502 has none: set node.secret"),
)
def test_setup_with_another_secret_or_none_is_rejected_on_both_sides(
    server_secret: str | None, client_secret: str | None, text: str
) -> None:
    pair = proving_pair(make_config(secret=client_secret), server_config(secret=server_secret))
    pair.settle()
    for side in (pair.client, pair.server):
        assert wire.ConnectionOpened(3) not in side.events
        assert side.machine.peer is None
        reasons = [event.reason for event in side.events if isinstance(event, wire.GoodbyeFrame)]
        assert any(text in reason for reason in (*reasons, str(side.failure))), (side, reasons)
        assert side.machine.state in (wire.ConnectionState.CLOSED, wire.ConnectionState.DRAINING)
    assert isinstance(pair.server.failure, errors.HandshakeRejectedError)


def test_nodes_connect_during_a_change_of_secret() -> None:
    for client, server in (
        ([SECRET, OTHER], SECRET),
        (SECRET, [SECRET, OTHER]),
        ([SECRET, OTHER], [OTHER, SECRET]),
        ([OTHER, SECRET], OTHER),
    ):
        pair = proving_pair(make_config(secret=client), server_config(secret=server))
        pair.settle()
        assert pair.client.events == pair.server.events == OPENED, (client, server)


def test_versions_that_cannot_prove_are_refused(subtests: pytest.Subtests) -> None:
    for version in (1, 2):
        with subtests.test(version=version):
            old = make_config(profile=wire.DOCUMENTED.up_to(version))
            pair = proving_pair(client=old)
            pair.settle()
            assert pair.server.events == pair.client.events == []
            assert f"version {version}, which cannot prove" in str(pair.server.failure)
            assert "the peer answered version 3; this node supports" in str(pair.client.failure)

            pair = proving_pair(server=server_config(profile=wire.DOCUMENTED.up_to(version)))
            pair.settle()
            assert "the peer answered version" in str(pair.client.failure)
            assert not [
                event for event in pair.client.events if isinstance(event, wire.ConnectionOpened)
            ]
    for profile in (wire.ZEEBE, wire.DOCUMENTED.up_to(2)):
        with pytest.raises(errors.ConfigError, match="a secret needs version 3"):
            profile.proving()


def test_a_recorded_client_is_refused_by_the_next_connection() -> None:
    config = server_config(secret=SECRET)
    old = Pair(make_config(secret=SECRET), config)
    old.settle()
    server = Side(wire.ConnectionRole.SERVER, config)
    server.give(old.client.written)
    assert wire.ConnectionOpened(3) not in server.events
    assert "has another cluster secret" in str(server.failure)


def test_a_recorded_server_is_refused_by_the_next_client() -> None:
    config = make_config(secret=SECRET)
    old = Pair(config, server_config(secret=SECRET))
    old.settle()
    client = Side(wire.ConnectionRole.CLIENT, config)
    client.give(old.server.written)
    assert client.events == []
    assert "has another cluster secret" in str(client.failure)


def test_a_proof_sent_back_is_refused() -> None:
    client = Side(wire.ConnectionRole.CLIENT, make_config(secret=SECRET))
    # What the client itself says, as if it were the server's.
    client.take()
    client.give(b"\x00\x03")
    hello = client.take()
    client.give(hello)
    client.give(client.take())
    assert client.events == []
    assert isinstance(client.failure, errors.HandshakeRejectedError)


@each(
    ({"name": "treasurer"},),
    ({"incarnation": 9},),
    ({"is_member": True},),
    ({"role": "core"},),
    ({"zone": "south"},),
    ({"is_tunnel": True},),
    ({"address": CLIENT_ADDRESS._replace(port=1)},),
    ({"frame_bytes_max": 7},),
)
def test_altered_hello_is_refused(changes: dict[str, object]) -> None:
    client = Side(wire.ConnectionRole.CLIENT, make_config(secret=SECRET))
    server = Side(wire.ConnectionRole.SERVER, server_config(secret=SECRET))
    server.give(client.take())
    client.give(server.take())
    hello, proof = cut_version3(client.take())
    changed = msgspec.structs.replace(client.machine._setup.hello, **changes)
    other = Side(wire.ConnectionRole.CLIENT, make_config())
    other.machine.send(changed)
    server.give(other.take()[6:], version3_frame(PROOF, proof.body))
    assert hello.kind == HELLO
    assert wire.ConnectionOpened(3) not in server.events
    assert "has another cluster secret" in str(server.failure)


def test_duplicate_name_without_the_secret_is_no_conflict() -> None:
    pair = proving_pair(
        make_config("server", secret=OTHER, incarnation=2), server_config(secret=SECRET)
    )
    pair.settle()
    assert isinstance(pair.server.failure, errors.HandshakeRejectedError)
    assert not isinstance(pair.server.failure, errors.DuplicateNameHandshakeError)
    assert not isinstance(pair.client.failure, errors.DuplicateNameHandshakeError)


def test_duplicate_name_with_the_secret_is_reported_on_both_sides() -> None:
    pair = proving_pair(
        make_config("server", secret=SECRET, incarnation=2), server_config(secret=SECRET)
    )
    pair.settle()
    assert isinstance(pair.server.failure, errors.DuplicateNameHandshakeError)
    assert isinstance(pair.client.failure, errors.DuplicateNameHandshakeError)


def test_a_tunnel_is_proven_too() -> None:
    for secret, is_open in ((SECRET, True), (OTHER, False)):
        config = make_config(secret=secret)
        hello = msgspec.structs.replace(config.hello, is_tunnel=True)
        server = server_config(secret=SECRET)
        cells = msgspec.structs.replace(server.hello, role="core")
        pair = proving_pair(
            msgspec.structs.replace(config, hello=hello),
            msgspec.structs.replace(server, hello=cells),
        )
        pair.settle()
        assert pair.server.machine.is_tunnel is is_open
        assert (pair.client.machine.state is wire.ConnectionState.AWAITING_TUNNEL) is is_open
        assert (wire.ConnectionOpened(3) in pair.server.events) is is_open


def test_requests_before_the_proof_are_refused() -> None:
    client = Side(wire.ConnectionRole.CLIENT, make_config(secret=SECRET))
    server = Side(wire.ConnectionRole.SERVER, server_config(secret=SECRET))
    server.give(client.take())
    client.give(server.take())
    hello = cut_version3(client.take())[0]
    server.give(version3_frame(HELLO, hello.body) + version3_frame(1, b"echo", short=4, id=1))
    assert server.events == []
    assert isinstance(server.failure, errors.UnexpectedFrameError)


def test_goodbye_of_a_client_before_its_proof_is_no_breach_at_the_server() -> None:
    for has_server_hello in (False, True):
        client = Side(wire.ConnectionRole.CLIENT, make_config(secret=SECRET))
        server = Side(wire.ConnectionRole.SERVER, server_config(secret=SECRET))
        server.give(client.take())
        answer = server.take()
        # Two bytes of the answer are the version; the hello of the server follows.
        client.give(answer if has_server_hello else answer[:2])
        client.machine.goodbye("no longer needed")
        server.give(client.take())
        assert server.failure is None
        reasons = [event.reason for event in server.events if isinstance(event, wire.GoodbyeFrame)]
        assert reasons == (["no longer needed"] if has_server_hello else [])


@pytest.mark.parametrize("is_tunnel", [False, True], ids=["requests", "tunnel"])
@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
@pytest.mark.parametrize("role", wire.ConnectionRole)
def test_goodbye_at_any_moment_before_the_connection_is_open_is_no_breach(
    role: wire.ConnectionRole, secret: str | None, is_tunnel: bool
) -> None:
    """Each side has received any part of what the other one had sent until then."""
    states = set()
    for moment in range(100):
        pair = Pair(
            with_role(make_config(secret=secret), "satellite", is_tunnel=is_tunnel),
            with_role(server_config(secret=secret), "core", is_tunnel=False),
        )
        rng = random.Random(moment)
        sides = [pair.client, pair.server]
        under_way = dict.fromkeys(sides, b"")
        for _ in range(moment):
            side, other = rng.sample(sides, 2)
            data = under_way[side] + side.take()
            size = min(len(data), rng.choice((1, 2, 16, 200)))
            other.give(data[:size])
            under_way[side] = data[size:]
        speaker = pair.client if role is wire.ConnectionRole.CLIENT else pair.server
        states.add(speaker.machine.state)
        speaker.machine.goodbye("no longer needed")
        while any(under_way.values()) or any(side.has_data for side in sides):
            for side, other in (sides, sides[::-1]):
                other.give(under_way[side] + side.take())
                under_way[side] = b""
        assert [side.failure for side in sides] == [None, None], moment
    assert states > {wire.ConnectionState.HANDSHAKE, wire.ConnectionState.AWAITING_HELLO}
    assert (wire.ConnectionState.AWAITING_PROOF in states) == (secret is not None)


def with_role(config: wire.WireConfig, role: str, *, is_tunnel: bool) -> wire.WireConfig:
    hello = msgspec.structs.replace(config.hello, role=role, is_tunnel=is_tunnel)
    return msgspec.structs.replace(config, hello=hello)


def test_client_that_rejects_the_hello_of_the_server_is_no_breach_at_the_server() -> None:
    pair = Pair(
        make_config(secret=SECRET), server_config(secret=SECRET), server_names=frozenset({"other"})
    )
    pair.settle()
    assert isinstance(pair.client.failure, errors.HandshakeRejectedError)
    assert pair.server.failure is None


def test_a_proof_where_there_is_no_secret_is_refused() -> None:
    pair = Pair()
    pair.settle()
    pair.server.give(version3_frame(PROOF, bytes(32)))
    assert isinstance(pair.server.failure, errors.UnexpectedFrameError)


def test_setup_without_a_proof_times_out() -> None:
    client = Side(wire.ConnectionRole.CLIENT, make_config(secret=SECRET))
    server = Side(wire.ConnectionRole.SERVER, server_config(secret=SECRET))
    server.give(client.take())
    client.give(server.take())
    server.give(version3_frame(HELLO, cut_version3(client.take())[0].body))
    assert server.machine.state is wire.ConnectionState.AWAITING_PROOF
    server.tick(server.machine.deadline())
    assert "no complete handshake" in str(server.failure)


def test_a_secret_without_nonces_is_refused() -> None:
    config = make_config(secret=SECRET)
    with pytest.raises(errors.ConfigError, match="must be set together, or neither"):
        msgspec.structs.replace(config, new_nonce=None)
