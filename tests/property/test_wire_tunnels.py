"""Tunnels, for all messages, splits and damage."""

from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import RemoteProtocolError
from postroad.wire import ConnectionOpened, ConnectionRole, ConnectionState, RequestFrame
from tests.support.wire import tunnel_ends
from tests.support.wire.pairs import Pair, Side, cut_at, hello_frame, version3_frame

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
messages = st.lists(st.tuples(texts, st.binary(max_size=200)), max_size=8)
cuts = st.lists(st.integers(0, 2_000), max_size=8)


def pieces_of(data: bytes, at: list[int]) -> list[bytes]:
    return cut_at(data, [min(cut, len(data)) for cut in at])


def requests_of(requests: list[tuple[str, bytes]]) -> list[RequestFrame]:
    return [RequestFrame(0, subject, payload) for subject, payload in requests]


@given(messages, messages, cuts, st.booleans())
def test_both_ways_in_order(
    there: list[tuple[str, bytes]], back: list[tuple[str, bytes]], at: list[int], pings: bool
) -> None:
    pair = tunnel_ends.tunnel_pair()
    for side, requests in ((pair.client, there), (pair.server, back)):
        for subject, payload in requests:
            side.machine.request(0, subject, payload, 0)
            if pings:
                side.machine.ping(0)
    pair.settle(lambda data: pieces_of(data, at))
    assert pair.server.events == requests_of(there)
    assert pair.client.events == requests_of(back)
    assert pair.client.failure is pair.server.failure is None


@given(messages, cuts)
def test_messages_sent_with_the_hello_are_received(
    requests: list[tuple[str, bytes]], at: list[int]
) -> None:
    pair = Pair(tunnel_ends.tunnel_client(), tunnel_ends.tunnel_server())
    pair.server.give(pair.client.take())
    for subject, payload in requests:
        pair.server.machine.request(0, subject, payload, 0)
    pair.client.give(*pieces_of(pair.server.take(), at))
    opening = [ConnectionOpened(3)] if requests else []
    assert pair.client.events == [*opening, *requests_of(requests)]


@given(st.sampled_from(ConnectionRole), st.binary(max_size=200), messages, cuts)
def test_any_bytes_are_decoded_or_close_the_tunnel(
    role: ConnectionRole, garbage: bytes, requests: list[tuple[str, bytes]], at: list[int]
) -> None:
    is_client = role is ConnectionRole.CLIENT
    side = Side(role, tunnel_ends.tunnel_client() if is_client else tunnel_ends.tunnel_server())
    opening = tunnel_ends.PREAMBLE[4:] if is_client else tunnel_ends.PREAMBLE
    frames = [
        version3_frame(1, subject.encode() + payload, short=len(subject.encode()))
        for subject, payload in requests
    ]
    data = opening + hello_frame(tunnel_ends.tunnel_hello(role)) + b"".join(frames) + garbage
    side.give(*pieces_of(data, at))
    if is_client and not requests and not side.events:
        return
    expected = [ConnectionOpened(3), *requests_of(requests)]
    assert side.events[: len(expected)] == expected
    if side.failure is not None:
        assert isinstance(side.failure, RemoteProtocolError)
        assert side.machine.state is ConnectionState.CLOSED
        assert side.give(b"".join(frames)) == []
