"""Frames of versions 1 and 2, profile `documented`: fixed-width fields, big endian (2.2).

request   i8 type = 1, i64 id, i32 payload length, payload, i32 subject length, subject
reply     i8 type = 2, i64 id, i32 payload length, payload, i8 status
"""

from __future__ import annotations

import struct

from postroad.core.errors import MalformedFrameError
from postroad.wire.codecs.legacy import REPLY, REQUEST, LegacyCodec, unknown_type_error
from postroad.wire.frames import Bytes, Frame, check_frame_size

_HEADER = struct.Struct(">Bqi")
_HEADER_BYTES = _HEADER.size


class DocumentedCodec(LegacyCodec):
    """Versions 1 and 2 of profile `documented`."""

    pack_header = staticmethod(_HEADER.pack)
    subject_length = struct.Struct(">i")

    def _decode_frames(self, data: Bytes, position: int, frames: list[Frame]) -> int:
        end = len(data)
        self.bytes_needed = _HEADER_BYTES
        while end - position >= _HEADER_BYTES:
            kind, id, length = _HEADER.unpack_from(data, position)
            if length < 0:
                raise MalformedFrameError(f"frame has a negative payload length, {length}")
            check_frame_size(length, self.frame_bytes_max)
            if kind != REQUEST and kind != REPLY:
                raise unknown_type_error(kind)
            start = position + _HEADER_BYTES
            after = self._decode_body(kind, data, id, start, start + length, frames)
            if after > end:
                self.bytes_needed = after - position
                break
            position = after
        return position
