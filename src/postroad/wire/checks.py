"""Checks of what a peer announces, shared by all decoders."""

from __future__ import annotations

from typing import TypeAlias

from postroad.core.errors import FrameTooLarge, MalformedFrame

Bytes: TypeAlias = bytes | memoryview


def decode_text(data: Bytes, what: str, request_id: int | None = None) -> str:
    """UTF-8 from a peer."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"{what} is not valid UTF-8: {error.reason}", request_id) from None


def check_frame_size(size: int, maximum: int) -> None:
    """Refuse a frame by its announced size, before any memory is taken for it."""
    if size > maximum:
        raise frame_too_large(size, maximum)


def frame_too_large(size: int, maximum: int) -> FrameTooLarge:
    """The error for a frame that announces more than is accepted."""
    return FrameTooLarge(f"a frame of {size} bytes was announced, {maximum} are accepted")
