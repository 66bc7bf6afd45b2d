"""Frames of versions 1 and 2, profile `documented`: fixed-width fields, big endian (2.2).

request   i8 type = 1, i64 id, i32 payload length, payload, i32 subject length, subject
reply     i8 type = 2, i64 id, i32 payload length, payload, i8 status
"""

from __future__ import annotations

import struct

from postroad.core.errors import FrameTooLargeError, MalformedFrameError
from postroad.core.limits import SUBJECT_BYTES_MAX
from postroad.wire.codecs.legacy import (
    REPLY,
    REQUEST,
    STATUS_MAX,
    LegacyCodec,
    unknown_status_error,
    unknown_type_error,
)
from postroad.wire.frames import (
    Bytes,
    Frame,
    ReplyFrame,
    RequestFrame,
    check_frame_size,
    decode_utf8,
    frame_too_large_error,
)

_HEADER = struct.Struct(">Bqi")
_HEADER_BYTES = _HEADER.size
_LENGTH = struct.Struct(">i")
_LENGTH_BYTES = _LENGTH.size


class DocumentedCodec(LegacyCodec):
    """Versions 1 and 2 of profile `documented`."""

    pack_header = staticmethod(_HEADER.pack)
    subject_length = _LENGTH

    def _decode_frames(self, data: Bytes, position: int, frames: list[Frame]) -> int:
        end = len(data)
        unpack = _HEADER.unpack_from
        maximum = self.frame_bytes_max
        self.bytes_needed = _HEADER_BYTES
        while end - position >= _HEADER_BYTES:
            kind, id, length = unpack(data, position)
            if not 0 <= length <= maximum:
                raise _bad_length(length, maximum)
            start = position + _HEADER_BYTES
            stop = start + length
            if kind == REPLY:
                if stop >= end:
                    self.bytes_needed = stop + 1 - position
                    break
                status = data[stop]
                if status > STATUS_MAX:
                    raise unknown_status_error(status, id)
                frames.append(ReplyFrame(id, status, data[start:stop]))  # type: ignore[arg-type]
                position = stop + 1
            elif kind == REQUEST:
                subject_start = stop + _LENGTH_BYTES
                if subject_start > end:
                    self.bytes_needed = subject_start - position
                    break
                (subject_length,) = _LENGTH.unpack_from(data, stop)
                if not 0 <= subject_length <= SUBJECT_BYTES_MAX:
                    raise _bad_subject_length(subject_length, id)
                check_frame_size(length + subject_length, maximum)
                subject_stop = subject_start + subject_length
                if subject_stop > end:
                    self.bytes_needed = subject_stop - position
                    break
                frames.append(
                    RequestFrame(
                        id,
                        decode_utf8(data[subject_start:subject_stop], "subject", id),
                        data[start:stop],  # type: ignore[arg-type]
                    )
                )
                position = subject_stop
            else:
                raise unknown_type_error(kind)
        return position


def _bad_length(length: int, maximum: int) -> MalformedFrameError | FrameTooLargeError:
    if length < 0:
        return MalformedFrameError(f"frame has a negative payload length, {length}")
    return frame_too_large_error(length, maximum)


def _bad_subject_length(length: int, id: int) -> MalformedFrameError:
    return MalformedFrameError(
        f"request {id} has a subject of {length} bytes; 0 to {SUBJECT_BYTES_MAX} are allowed"
    )
