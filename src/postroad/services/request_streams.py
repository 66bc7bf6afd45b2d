"""Requests with streams: their first part runs the action, the others go to its reader."""

from __future__ import annotations

from .errors import QueueIsFullError
from .inflow import Inflow, StreamKey
from .packets import Request
from .streaming import Streaming
from .streams import REPORTED
from .transit import Transit


class RequestStreams:
    """Takes the parts of all requests with a stream."""

    def __init__(self, streaming: Streaming, transit: Transit) -> None:
        self._streaming = streaming
        self._incoming = streaming.incoming
        self._transit = transit

    def receive(self, request: Request) -> Inflow | None:
        """Take a part; the stream, if the action is to be run now.

        Raises:
            QueueIsFullError: there are too many streams already. Said once for each.
        """
        key = StreamKey(request.sender, request.id, True)
        flow = self._incoming.get(key)
        if flow is None:
            if self._incoming.is_former(key):
                return None
            flow = self._begin(key, request)
        return flow if flow.receive(request, self._transit.arriving_bytes) else None

    def _begin(self, key: StreamKey, request: Request) -> Inflow:
        flow = self._incoming.begin(key)
        if flow is not None:
            self._streaming.watch()
            return flow
        self._incoming.refuse(key)
        if request.headers.get(REPORTED) is True:
            self._incoming.cancel(key)
        raise QueueIsFullError("too many streams come in already")
