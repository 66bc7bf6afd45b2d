"""What holds for all bytes and all frames."""

import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from postroad import wire
from postroad.core.errors import (
    HandshakeRejectedError,
    MalformedFrameError,
    MalformedPayloadError,
    RemoteProtocolError,
)
from postroad.core.names import Address
from postroad.wire.codecs import Codec, DocumentedCodec, Version3Codec, ZeebeCodec, zeebe
from postroad.wire.codecs.legacy import decode_sender_host, decode_sender_ip
from postroad.wire.compression import compress_payload, decompress_payload, load_algorithm
from postroad.wire.frame_reader import BufferCache, FrameReader
from postroad.wire.frames import PingFrame, PongFrame
from postroad.wire.handshake import Handshake
from postroad.wire.heartbeats import decode_setup_request, decode_setup_response
from postroad.wire.hello import decode_hello, encode_hello
from tests.support.tiers import by_tier
from tests.support.wire import pairs

PREAMBLE = wire.encode_preamble("zeebe-cluster")
SENDER = Address("localhost", 26502)
LIMIT = 2_000

# Frames of the older versions, and all of version 3.

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
signed_ids = st.integers(-(2**63), 2**63 - 1)
ids = st.integers(0, 2**64 - 1)
words = st.integers(0, 2**32 - 1)
payloads = st.binary(max_size=300) | st.integers(0, 1_500).map(lambda size: b"ab" * (size // 2))
names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20).filter(
    lambda name: name != "local"
)
addresses = st.builds(Address, texts, st.integers(0, 65_535))

older_frames: st.SearchStrategy[wire.Frame] = st.one_of(
    st.builds(wire.RequestFrame, signed_ids, texts, payloads),
    st.builds(wire.ReplyFrame, signed_ids, st.integers(0, 3), payloads),
)
hellos = st.builds(
    wire.HelloFrame,
    texts,
    names,
    ids,
    addresses,
    st.integers(1, 2**32 - 1),
    st.integers(1, 2**32 - 1),
    words,
    st.sampled_from([(), ("zstd",), ("zlib", "zstd"), ("later",)]),
    st.booleans(),
    texts,
    texts,
    st.booleans(),
)
version3_frames: st.SearchStrategy[wire.Frame] = st.one_of(
    st.builds(wire.RequestFrame, ids, texts, payloads, words, st.booleans()),
    st.builds(wire.ReplyFrame, ids, st.integers(1, 4), payloads, words, st.booleans()),
    # A reply that succeeded has no error code.
    st.builds(wire.ReplyFrame, ids, st.just(0), payloads),
    hellos,
    st.builds(wire.CancelFrame, ids),
    st.builds(PingFrame, ids),
    st.builds(PongFrame, ids),
    st.builds(wire.GoodbyeFrame, words, texts),
)


def compressing(name: str) -> Version3Codec:
    codec = Version3Codec(LIMIT)
    codec.compression = load_algorithm(name)
    return codec


CodecMaker = Callable[[], Codec]

OLDER: dict[str, CodecMaker] = {
    "documented 1": lambda: DocumentedCodec(1, SENDER, "10.0.0.1", LIMIT),
    "documented 2": lambda: DocumentedCodec(2, SENDER, "10.0.0.1", LIMIT),
    "zeebe 1": lambda: ZeebeCodec(1, SENDER, "::1", LIMIT),
    "zeebe 2": lambda: ZeebeCodec(2, SENDER, "::1", LIMIT),
}
NEWER: dict[str, CodecMaker] = {
    "version 3": lambda: Version3Codec(LIMIT),
    "version 3 zlib": lambda: compressing("zlib"),
    "version 3 zstd": lambda: compressing("zstd"),
}
CODECS = OLDER | NEWER
names_of_codecs = st.sampled_from(list(CODECS))
many = settings(max_examples=by_tier(test=140, nightly=7_000, quick=30))
"""For tests that draw one of the codecs."""


def frames_of(name: str) -> st.SearchStrategy[list[wire.Frame]]:
    return st.lists(older_frames if name in OLDER else version3_frames, max_size=6)


def encode(name: str, frames: list[wire.Frame]) -> bytes:
    codec = CODECS[name]()
    out: list[bytes] = []
    for frame in frames:
        codec.encode(out, frame)
    return b"".join(out)


@st.composite
def pieces_of(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Any way to cut a stream."""
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=8))
    return pairs.cut_at(data, cuts)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """A stream with some bytes changed, dropped or put in."""
    stream = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(stream)))
        take = draw(st.integers(0, 4))
        stream[at : at + take] = draw(st.binary(max_size=6))
    return bytes(stream)


def read(reader: FrameReader, pieces: list[bytes]) -> list[wire.Frame]:
    frames: list[wire.Frame] = []
    for piece in pieces:
        frames += reader.feed(piece)
        # A reader may hold back what follows a hello until it is asked again.
        while reader.failure is None and (more := reader.feed(b"")):
            frames += more
        if reader.failure is not None:
            break
    return frames


def outcome(name: str, pieces: list[bytes]) -> tuple[list[wire.Frame], type[Exception] | None]:
    """Frames and failure; anything but a RemoteProtocolError would come out as it is."""
    reader = FrameReader(CODECS[name](), BufferCache())
    frames = read(reader, pieces)
    assert reader.failure is None or isinstance(reader.failure, RemoteProtocolError)
    return frames, type(reader.failure) if reader.failure else None


@many
@given(names_of_codecs, st.data())
def test_frames_survive_any_split(name: str, data: st.DataObject) -> None:
    frames = data.draw(frames_of(name))
    pieces = data.draw(pieces_of(encode(name, frames)))
    assert outcome(name, pieces) == (frames, None)


@given(hellos, st.builds(wire.Datagram, texts, texts, st.integers(0, 65_535), texts, payloads))
def test_hellos_and_datagrams_survive(hello: wire.HelloFrame, datagram: wire.Datagram) -> None:
    assert decode_hello(encode_hello(hello)) == hello
    assert wire.decode_datagram(PREAMBLE, wire.encode_datagram(PREAMBLE, datagram)) == datagram


@given(st.integers(0, 2**32 - 1), signed_ids, st.binary(max_size=3))
def test_varints_survive(small: int, large: int, tail: bytes) -> None:
    encoded = zeebe.encode_varint32(small)
    assert len(encoded) <= 5
    assert zeebe.decode_varint32(encoded + tail, 0) == (small, len(encoded))
    encoded = zeebe.encode_varint64(large)
    assert len(encoded) <= 9
    assert zeebe.decode_varint64(encoded + tail, 0) == (large, len(encoded))


@given(st.sampled_from(["zlib", "zstd"]), st.binary(max_size=50).map(lambda unit: unit * 30))
def test_compressed_payloads_survive(name: str, payload: bytes) -> None:
    algorithm = load_algorithm(name)
    packed = compress_payload(algorithm, payload)
    if packed is not None:
        assert len(packed) < len(payload)
        assert decompress_payload(algorithm, packed, LIMIT) == payload


@given(st.text(max_size=50))
def test_hash_is_that_of_the_definition(text: str) -> None:
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        value = 31 * value + unit
    assert wire.java_string_hash(text) == (value + 2**31) % 2**32 - 2**31


@many
@given(names_of_codecs, st.data())
def test_any_bytes_are_frames_or_a_failure(name: str, data: st.DataObject) -> None:
    stream = data.draw(st.binary(max_size=200))
    outcome(name, data.draw(pieces_of(stream)))


@many
@given(names_of_codecs, st.data())
def test_damaged_frames_are_frames_or_a_failure_however_they_are_cut(
    name: str, data: st.DataObject
) -> None:
    stream = data.draw(damaged(encode(name, data.draw(frames_of(name)))))
    pieces = data.draw(pieces_of(stream))
    assert outcome(name, pieces) == outcome(name, [stream])


hello_bytes = st.binary(max_size=200) | hellos.map(encode_hello).flatmap(damaged)
datagram_bytes = (
    st.binary(max_size=100)
    | st.builds(wire.Datagram, names, texts, st.just(1), texts, payloads)
    .map(lambda datagram: wire.encode_datagram(PREAMBLE, datagram))
    .flatmap(damaged)
    | st.binary(max_size=100).map(lambda body: PREAMBLE + struct.pack(">i", len(body)) + body)
)


@pytest.mark.parametrize(
    ("decode", "bytes_of", "refusal"),
    [
        (decode_hello, hello_bytes, MalformedFrameError),
        (partial(wire.decode_datagram, PREAMBLE), datagram_bytes, RemoteProtocolError),
        (decode_setup_request, st.binary(max_size=20), MalformedPayloadError),
        (decode_setup_response, st.binary(max_size=20), MalformedPayloadError),
    ],
    ids=["hello", "datagram", "setup request", "setup response"],
)
@given(data=st.data())
def test_any_bytes_are_decoded_or_refused(
    decode: Callable[[bytes], object],
    bytes_of: st.SearchStrategy[bytes],
    refusal: type[Exception],
    data: st.DataObject,
) -> None:
    with suppress(refusal):
        decode(data.draw(bytes_of))


@given(st.sampled_from(["zlib", "zstd"]), st.data())
def test_any_compressed_payload_is_one_or_refused(name: str, data: st.DataObject) -> None:
    algorithm = load_algorithm(name)
    good = compress_payload(algorithm, b"to be or not to be " * 50)
    assert good is not None
    packed = data.draw(st.binary(max_size=60) | damaged(good))
    with suppress(RemoteProtocolError):
        assert len(decompress_payload(algorithm, packed, LIMIT)) <= LIMIT


@given(st.binary(max_size=60), st.booleans())
def test_any_sender_is_one_or_malformed(data: bytes, has_short_length: bool) -> None:
    for decode in (
        decode_sender_host,
        lambda data: decode_sender_ip(data, has_short_length=has_short_length),
    ):
        try:
            decoded = decode(data)
        except MalformedFrameError:
            continue
        assert decoded is None or decoded[1] <= len(data)


# Whole connections.

subsets = st.sets(st.sampled_from([1, 2, 3]), min_size=1).map(
    lambda versions: tuple(sorted(versions))
)


@st.composite
def profiles(draw: st.DrawFn) -> wire.ProtocolProfile:
    if draw(st.booleans()):
        return wire.ProtocolProfile("documented", draw(subsets), answers_preamble=False)
    versions = draw(st.sets(st.sampled_from([1, 2]), min_size=1))
    return wire.ProtocolProfile("zeebe", tuple(sorted(versions)), answers_preamble=True)


@given(profiles(), profiles(), st.data())
def test_any_two_sides_agree_or_refuse(
    client: wire.ProtocolProfile, server: wire.ProtocolProfile, data: st.DataObject
) -> None:
    """Of one profile they end in a version both know; of two, never in a version they misread."""
    pair = pairs.Pair(pairs.make_config(profile=client), pairs.server_config(profile=server))
    pair.settle(lambda stream: data.draw(pieces_of(stream)))
    machine = pair.client.machine
    assert pair.client.failure is None or isinstance(pair.client.failure, RemoteProtocolError)
    if client.name != server.name:
        assert machine.state is not wire.ConnectionState.OPEN or machine.version in client.versions
        return
    offered = client.versions[-1]
    answered = offered if offered in server.versions else server.versions[-1]
    assert pair.server.machine.version == answered
    if answered in client.versions:
        assert machine.state is pair.server.machine.state is wire.ConnectionState.OPEN
        assert machine.version == answered
    else:
        assert isinstance(pair.client.failure, HandshakeRejectedError)


@given(st.sampled_from(list(wire.ConnectionRole)), profiles(), st.binary(max_size=60))
def test_any_handshake_is_waited_for_agreed_or_refused(
    role: wire.ConnectionRole, profile: wire.ProtocolProfile, data: bytes
) -> None:
    for stream in (data, PREAMBLE + data):
        handshake = Handshake(role, profile, PREAMBLE)
        try:
            rest = handshake.feed(stream)
        except HandshakeRejectedError:
            continue
        if rest is None:
            assert handshake.version == 0
        else:
            assert handshake.version in profile.versions
            assert stream.endswith(rest)


def open_bytes(role: wire.ConnectionRole, profile: wire.ProtocolProfile) -> bytes:
    """What the peer of that side sends until frames may follow."""
    version = profile.versions[-1]
    greeting = PREAMBLE if role is wire.ConnectionRole.SERVER or profile.answers_preamble else b""
    greeting += struct.pack(">h", version)
    if version == 3:
        return greeting + pairs.hello_frame(pairs.peer_hello(role))
    return greeting + (b"\x04\x7f\x00\x00\x01" if version == 1 else b"\x00\x01h") + bytes(4)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[wire.ConnectionRole, wire.ProtocolProfile, bytes]:
    role = draw(st.sampled_from(list(wire.ConnectionRole)))
    profile = draw(profiles())
    version = profile.versions[-1]
    name = f"{profile.name} {version}" if version < 3 else "version 3"
    opening = open_bytes(role, profile)
    frames = encode(name, draw(frames_of(name)))
    return role, profile, draw(damaged(opening + frames) | st.just(opening + frames))


@given(conversations(), st.data())
def test_a_connection_never_raises_and_hears_the_same_however_it_is_cut(
    conversation: tuple[wire.ConnectionRole, wire.ProtocolProfile, bytes], data: st.DataObject
) -> None:
    role, profile, stream = conversation
    outcomes = []
    for pieces in ([stream], data.draw(pieces_of(stream))):
        config = (pairs.make_config if role is wire.ConnectionRole.CLIENT else pairs.server_config)(
            profile=profile
        )
        side = pairs.Side(role, config)
        side.give(*pieces)
        failure = side.failure
        assert failure is None or isinstance(failure, RemoteProtocolError)
        assert (failure is not None) == (side.machine.state is wire.ConnectionState.CLOSED)
        outcomes.append((side.events, type(failure)))
    assert outcomes[0] == outcomes[1]


@settings(max_examples=by_tier(test=25, nightly=250, quick=5))
@given(
    profiles(),
    st.lists(st.sampled_from([0, 100, 65_000, 66_000, 300_000]), max_size=6),
    st.integers(1_000, 200_000),
)
def test_messages_of_all_sizes_survive_being_read_to_their_room(
    profile: wire.ProtocolProfile, sizes: list[int], piece_bytes: int
) -> None:
    pair = pairs.open_pair(pairs.make_config(profile=profile), pairs.server_config(profile=profile))
    requests = [
        wire.RequestFrame(id, "echo", bytes([id]) * size) for id, size in enumerate(sizes, start=1)
    ]
    for request in requests:
        pair.client.machine.send(request)
    pair.server.pour(pair.client.take(), piece_bytes)
    assert pair.server.events == requests
    assert pair.server.failure is None
    assert not pair.server.machine.wants_buffer


class PendingModel(RuleBasedStateMachine):
    """Pending against a dictionary that is searched in full every time."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: wire.DeadlineMap[str] = wire.DeadlineMap()
        self.model: dict[int, tuple[str, float]] = {}

    @rule(id=st.integers(0, 20), deadline=st.integers(0, 50))
    def add(self, id: int, deadline: int) -> None:
        self.pending.add(id, f"{id} by {deadline}", deadline)
        self.model[id] = (f"{id} by {deadline}", deadline)

    @rule(id=st.integers(0, 20))
    def take(self, id: int) -> None:
        expected = self.model.pop(id, None)
        assert self.pending.pop(id) == (expected and expected[0])

    @rule(now=st.integers(0, 50))
    def expire(self, now: int) -> None:
        due = {id: waiter for id, (waiter, deadline) in self.model.items() if deadline <= now}
        assert dict(self.pending.pop_expired(now)) == due
        for id in due:
            del self.model[id]
        assert self.pending.next_deadline > now

    @rule()
    def end(self) -> None:
        expected = {id: waiter for id, (waiter, _) in self.model.items()}
        assert dict(self.pending.pop_all()) == expected
        self.model.clear()
        assert self.pending.next_deadline == wire.NEVER

    @invariant()
    def agrees(self) -> None:
        assert len(self.pending) == len(self.model)
        earliest = min((deadline for _, deadline in self.model.values()), default=wire.NEVER)
        assert self.pending.next_deadline <= earliest


TestPending = PendingModel.TestCase
TestPending.settings = settings(max_examples=by_tier(test=40, nightly=1_000, quick=10))
