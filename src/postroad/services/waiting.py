"""One call to another node, from its request to its response."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from .context import Context
from .error_form import error_from_wire
from .errors import MoleculerError
from .incoming_stream import IncomingStream
from .inflow import Inflow
from .packets import Response
from .streams import REPORTED


class Waiting:
    """A call that was sent, and whoever waits for its response.

    Attributes:
        node_id: the node it was sent to; None if the transporter chose one.
        flow: the stream that its response turned out to be, until that is open.
    """

    __slots__ = ("context", "flow", "future", "node_id")

    def __init__(self, context: Context, future: asyncio.Future[Any], node_id: str | None) -> None:
        self.context = context
        self.future = future
        self.node_id = node_id
        self.flow: Inflow | None = None

    def answer(self, response: Response) -> None:
        """The response came."""
        context = self.context
        context.node_id = response.sender
        if response.meta:
            context.meta.update(response.meta)
        if response.headers:
            context.response_headers.update(response.headers)
        if self.future.done():
            return
        if response.success:
            self.future.set_result(response.data)
        else:
            self.future.set_exception(error_from_wire(response.error, sender=response.sender))

    def answer_stream(self, response: Response, stream: IncomingStream) -> None:
        """The first part of the response came."""
        # From now on the reader closes it.
        self.flow = None
        self.answer(msgspec.structs.replace(response, success=True, data=stream))
        self.context.response_headers.pop(REPORTED, None)

    def fail(self, kind: type[MoleculerError]) -> None:
        """There will be no response."""
        self.fail_with(kind(data={"action": self.context.action, "nodeID": self.node_id}))

    def fail_with(self, error: MoleculerError) -> None:
        """There will be no response."""
        self.give_up()
        if not self.future.done():
            self.future.set_exception(error)

    def give_up(self) -> None:
        """Nobody waits any more."""
        flow, self.flow = self.flow, None
        if flow is not None:
            flow.close_now()
