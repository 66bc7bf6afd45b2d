"""A message as the cell that gets it sees it."""

from __future__ import annotations

from typing import Any

import msgspec

from .address import CellAddress
from .content import BYTES, decode_body
from .path import CellPath

_NO_WAY = CellPath()


class CellMessage(msgspec.Struct, frozen=True, gc=False):
    """What a handler is given."""

    payload: bytes
    content_type: str = BYTES
    """Says how to read the payload."""
    sender: CellAddress | None = None
    """The cell that sent it, or sent it on: the last one that did, see `way`."""
    route_name: str | None = None
    """The queue or topic it was sent to, if that is why this cell gets it."""
    id: bytes = b""
    wants_reply: bool = False
    """Whether somebody waits for what the handler returns."""
    deadline: float | None = None
    """Time of the event loop's clock when the sender stops caring, where it told."""
    session: str | None = None
    headers: dict[str, str] | None = None
    path: CellPath = _NO_WAY
    """Who sent it and everybody who sent it on, oldest first; cells, and domains as `*@domain`.

    What is before the sender is what the sender says.
    """
    transaction: Any = None
    """Of a guaranteed message: what is written through it happens once, with the message."""

    @property
    def body(self) -> Any:
        """The decoded payload; raises MalformedPayloadError if it is not of its content type."""
        return decode_body(self.content_type, self.payload)
