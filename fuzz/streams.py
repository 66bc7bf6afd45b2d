"""The invariant of every frame codec: how bytes are cut makes no difference, nor does re-encoding.

A codec is driven through the reader that connections use. The same input is fed whole, byte by
byte, and in pieces through the reader's path for large frames, made to begin at a few bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fuzz.samples import LIMITS, encode_all
from fuzz.target import require
from postroad.core.errors import RemoteProtocolError
from postroad.core.limits import HELLO_BYTES_MAX, MIB, SUBJECT_BYTES_MAX
from postroad.wire import BufferCache, Frame, HelloFrame, ReplyFrame, RequestFrame
from postroad.wire import frame_reader as reader_module
from postroad.wire.codecs import Codec
from postroad.wire.frame_reader import FrameReader
from postroad.wire.hello import encode_hello

MakeCodec = Callable[[], Codec]

# A reader may wait for this much of one frame: its content, its subject, and any header.
FRAME_WAIT_BYTES_MAX = LIMITS.frame_bytes_max + SUBJECT_BYTES_MAX + 64
# Long enough to hold the end of one frame and the start of the next.
PIECE_BYTES = 7


class Reading(NamedTuple):
    """What became of an input."""

    frames: list[Frame]
    failure: type[RemoteProtocolError] | None


def check_stream(make_codec: MakeCodec, data: bytes) -> None:
    """Any bytes are frames or a RemoteProtocolError, however they arrive."""
    whole = read(make_codec(), [data])
    check_same(whole, read(make_codec(), cut(data, 1)))
    with everything_large():
        pieces = cut(data, PIECE_BYTES)
        check_same(whole, read(make_codec(), pieces))
        check_same(whole, read(make_codec(), pieces, uses_room=True))
    check_round_trip(make_codec, whole.frames)


def check_same(whole: Reading, pieces: Reading) -> None:
    """The input means in pieces what it means as a whole."""
    require(pieces == whole, f"whole: {whole}, in pieces: {pieces}")


@contextmanager
def everything_large() -> Iterator[None]:
    """Let the reader treat frames of a few bytes as it treats large ones."""
    saved = reader_module.LARGE_BYTES_MIN, reader_module._INITIAL_BUFFER_BYTES
    reader_module.LARGE_BYTES_MIN, reader_module._INITIAL_BUFFER_BYTES = 4, 8
    try:
        yield
    finally:
        reader_module.LARGE_BYTES_MIN, reader_module._INITIAL_BUFFER_BYTES = saved


def read(codec: Codec, pieces: Iterable[bytes], *, uses_room: bool = False) -> Reading:
    """Feed the pieces until they end or the reader has failed."""
    reader = FrameReader(codec, BufferCache())
    take = read_into_room if uses_room else feed
    frames: list[Frame] = []
    for piece in pieces:
        frames += take(reader, piece)
        if reader.failure is not None:
            break
        check_buffer(reader, codec)
    check_frames(frames)
    return Reading(frames, None if reader.failure is None else type(reader.failure))


def read_into_room(reader: FrameReader, piece: bytes) -> list[Frame]:
    """Do as a socket does that reads straight into the buffer of a large frame."""
    frames: list[Frame] = []
    while piece and reader.failure is None:
        room = reader.receive_buffer()
        if room is None:
            return frames + feed(reader, piece)
        size = min(len(room), len(piece))
        require(size > 0, "a large frame has no room, and is not whole")
        room[:size] = piece[:size]
        frames += reader.buffer_filled(size)
        piece = piece[size:]
    return frames


def feed(reader: FrameReader, piece: bytes) -> list[Frame]:
    """All frames that are whole now; what follows a hello may only come when asked for again."""
    frames = reader.feed(piece)
    while reader.failure is None and frames and isinstance(frames[-1], HelloFrame):
        more = reader.feed(b"")
        if not more:
            break
        frames += more
    return frames


def check_buffer(reader: FrameReader, codec: Codec) -> None:
    """Neither what the reader waits for nor what it keeps is more than a frame may be."""
    wanted, held = codec.bytes_needed, held_bytes(reader)
    require(wanted <= FRAME_WAIT_BYTES_MAX, f"the reader waits for a frame of {wanted} bytes")
    require(held <= FRAME_WAIT_BYTES_MAX, f"the reader holds {held} bytes")


def held_bytes(reader: FrameReader) -> int:
    """Size of all buffers of a reader, whatever they are called."""
    parts = (getattr(reader, name) for name in reader.__slots__)
    return sum(len(part) for part in parts if isinstance(part, bytes | bytearray))


def check_frames(frames: list[Frame]) -> None:
    """Payloads are bytes of their own, within the limit."""
    for frame in frames:
        if isinstance(frame, RequestFrame | ReplyFrame):
            require(type(frame.payload) is bytes, f"payload is a {type(frame.payload).__name__}")
            require(len(frame.payload) <= LIMITS.frame_bytes_max, "payload exceeds the limit")


def cut(data: bytes, size: int) -> list[bytes]:
    """The input in pieces."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def check_round_trip(make_codec: MakeCodec, frames: list[Frame]) -> None:
    """What was decoded is encoded to bytes that decode to the same."""
    frames = [frame for frame in frames if not is_unrepeatable(frame)]
    codec = make_codec()
    # A compressed payload may have been larger than what its frame may carry otherwise.
    codec.frame_bytes_max = MIB
    reader = FrameReader(codec, BufferCache())
    again = feed(reader, encode_all(make_codec(), frames))
    require(reader.failure is None, f"re-encoded frames are refused: {reader.failure}")
    require(again == frames, f"decoded: {frames}, re-encoded and decoded: {again}")


def is_unrepeatable(frame: Frame) -> bool:
    """A hello that left fields out can outgrow its limit when they are written out."""
    return isinstance(frame, HelloFrame) and len(encode_hello(frame)) > HELLO_BYTES_MAX
