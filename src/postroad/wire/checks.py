"""Checks of what a peer announces, shared by all decoders."""

from __future__ import annotations

from typing import TypeAlias

from postroad.core.errors import FrameTooLargeError, MalformedFrameError

Bytes: TypeAlias = bytes | memoryview


def decode_utf8(data: Bytes, what: str, request_id: int | None = None) -> str:
    """UTF-8 from a peer."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedFrameError(
            f"{what} is not valid UTF-8: {error.reason}", request_id
        ) from None


def check_frame_size(size: int, maximum: int) -> None:
    """Refuse a frame by its announced size, before any memory is taken for it."""
    if size > maximum:
        raise frame_too_large_error(size, maximum)


def frame_too_large_error(size: int, maximum: int) -> FrameTooLargeError:
    """The error for a frame that announces more than is accepted."""
    return FrameTooLargeError(f"a frame of {size} bytes was announced, {maximum} are accepted")
