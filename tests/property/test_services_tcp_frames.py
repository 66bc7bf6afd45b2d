"""Whatever is sent, however it is cut, comes as it was; and nothing else does any harm."""

from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import RemoteProtocolError
from postroad.services.kinds import Kind
from postroad.services.transporters.tcp_frames import (
    HEADER_BYTES,
    NUMBERS,
    FrameReader,
    encode_header,
)

LIMIT = 300

packets = st.lists(
    st.tuples(st.sampled_from(list(NUMBERS)), st.binary(max_size=LIMIT)), max_size=12
)


def encode(sent: list[tuple[Kind, bytes]]) -> bytes:
    return b"".join(encode_header(kind, len(data)) + data for kind, data in sent)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    starts = [0, *ends]
    return [data[start:end] for start, end in zip(starts, ends, strict=False)]


@given(packets, st.lists(st.integers(0, 4_000), max_size=30))
def test_cuts_do_not_matter(sent: list[tuple[Kind, bytes]], cuts: list[int]) -> None:
    reader = FrameReader(LIMIT)
    came = [packet for piece in pieces(encode(sent), cuts) for packet in reader.receive(piece)]
    assert came == sent
    assert reader.failure is None
    assert not reader.is_within_frame


@given(packets, st.binary(max_size=60), st.lists(st.integers(0, 4_000), max_size=30))
def test_garbage_ends_it_after_what_was_good(
    sent: list[tuple[Kind, bytes]], garbage: bytes, cuts: list[int]
) -> None:
    whole, cut = FrameReader(LIMIT), FrameReader(LIMIT)
    data = encode(sent) + garbage
    at_once = whole.receive(data)
    piecemeal = [packet for piece in pieces(data, cuts) for packet in cut.receive(piece)]
    assert at_once[: len(sent)] == sent
    assert piecemeal == at_once
    assert str(cut.failure) == str(whole.failure)
    assert whole.failure is None or isinstance(whole.failure, RemoteProtocolError)


@given(st.lists(st.binary(max_size=100), max_size=30))
def test_never_more_is_kept_than_one_frame(data: list[bytes]) -> None:
    reader = FrameReader(LIMIT)
    for piece in data:
        reader.receive(piece)
        assert len(reader._held) < HEADER_BYTES + LIMIT


@given(packets, st.data())
def test_flipped_bit_in_a_header_is_seen(
    sent: list[tuple[Kind, bytes]], chosen: st.DataObject
) -> None:
    data = bytearray(encode([*sent, (Kind.EVENT, b"last")]))
    start = len(encode(sent))
    bit = chosen.draw(st.integers(0, HEADER_BYTES * 8 - 1))
    data[start + bit // 8] ^= 1 << bit % 8
    reader = FrameReader(LIMIT)
    assert reader.receive(bytes(data)) == sent
    assert reader.failure is not None
