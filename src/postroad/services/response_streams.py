"""Responses that are streams: their first part answers the call, the others go to its reader."""

from __future__ import annotations

from .calls import PendingCalls
from .errors import QueueIsFullError
from .incoming_stream import IncomingStream
from .inflow import Inflow, StreamKey
from .packets import Response
from .streaming import Streaming
from .streams import REPORTED
from .transit import Transit
from .waiting import Waiting


class ResponseStreams:
    """Takes the parts of all responses that are streams."""

    def __init__(
        self, pending: PendingCalls[Waiting], streaming: Streaming, transit: Transit
    ) -> None:
        self._pending = pending
        self._streaming = streaming
        self._incoming = streaming.incoming
        self._transit = transit

    def receive(self, response: Response) -> None:
        """A part came."""
        key = StreamKey(response.sender, response.id, False)
        flow = self._incoming.get(key)
        if flow is None:
            flow = self._begin(key, response)
            if flow is None:
                return
        is_opened = flow.receive(response, self._transit.arriving_bytes)
        if is_opened:
            self._open(flow, response)
        elif flow.failure is not None and not flow.is_open:
            waiting = self._pending.take(response.id)
            if waiting is not None:
                waiting.fail_with(flow.failure)

    def _begin(self, key: StreamKey, response: Response) -> Inflow | None:
        if self._incoming.is_former(key):
            return None
        waiting = self._pending.get(response.id)
        if waiting is None or not self._is_from(waiting, key.peer):
            self._refuse(key, response)
            return None
        flow = self._incoming.begin(key)
        if flow is None:
            self._refuse(key, response)
            self._pending.take(response.id)
            waiting.fail_with(QueueIsFullError("too many streams come in already"))
            return None
        waiting.flow = flow
        self._streaming.watch()
        return flow

    def _open(self, flow: Inflow, response: Response) -> None:
        waiting = self._pending.take(response.id)
        if waiting is None:
            flow.close_now()
            return
        waiting.answer_stream(response, IncomingStream(flow))

    def _refuse(self, key: StreamKey, response: Response) -> None:
        """Nobody wants it: say so, once."""
        self._incoming.refuse(key)
        if (response.headers or {}).get(REPORTED) is True:
            self._incoming.cancel(key)

    @staticmethod
    def _is_from(waiting: Waiting, node_id: str) -> bool:
        """Whether a node may answer; the first to do so is the only one."""
        return waiting.flow is None and waiting.node_id in (None, node_id)
