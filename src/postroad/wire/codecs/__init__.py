"""Frames to bytes and back, one codec per layout."""

from .codec import Codec
from .documented import DocumentedCodec
from .version3 import Version3Codec
from .zeebe import ZeebeCodec

__all__ = ["Codec", "DocumentedCodec", "Version3Codec", "ZeebeCodec"]
