"""Texts that every database keeps."""

from __future__ import annotations


def storable(text: str | None) -> str | None:
    """The text without what some database would refuse."""
    return None if text is None else text.encode("utf-8", "replace").decode().replace("\0", "?")
