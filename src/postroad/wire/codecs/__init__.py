"""Codecs: frames to bytes and back, one for each frame layout."""

from postroad.wire.codecs.codec import Codec
from postroad.wire.codecs.legacy import DocumentedCodec
from postroad.wire.codecs.version3 import TRACE_BYTES_MAX, Version3Codec
from postroad.wire.codecs.zeebe import ZeebeCodec

__all__ = ["TRACE_BYTES_MAX", "Codec", "DocumentedCodec", "Version3Codec", "ZeebeCodec"]
