"""Frames to bytes and back, one codec per layout."""

from .codec import Codec
from .documented import DocumentedCodec
from .trace_form import TRACE_BYTES_MAX
from .version3 import Version3Codec
from .zeebe import ZeebeCodec

__all__ = ["TRACE_BYTES_MAX", "Codec", "DocumentedCodec", "Version3Codec", "ZeebeCodec"]
