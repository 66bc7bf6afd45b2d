"""One connection of a client, which gets as much time as was configured, and no more."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import h11
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from postroad.admin.problems import CONTENT_TYPE, Problem, make_problem

from .accepting import Place, Room
from .guard import STATE_CERTIFICATE, STATE_ON_KNOWN

# What clients do wrong is told to them, and not to whoever reads the log.
logger = logging.getLogger("postroad.admin.http")
logger.setLevel(logging.ERROR)

# Whoever connects to ask something has it ready.
_FIRST_BYTE_S_MAX = 10.0


class StrictConnection(h11.Connection):
    """HTTP/1.1 that no proxy can understand in another way."""

    def next_event(self) -> Any:
        """What has come next; raises RemoteProtocolError if its end is told in two ways."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = [name for name, _ in event.headers]
            if b"transfer-encoding" in names and (
                b"content-length" in names or event.http_version < b"1.1"
            ):
                raise h11.RemoteProtocolError("content-length and transfer-encoding together")
        return event


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 that ends clients who send or read too slowly.

    uvicorn waits for ever for the rest of a request.

    Args:
        timeout_s: for a request to arrive, and for an answer to be taken.
        room: where the connection has its place, and makes it free for others if need be.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        timeout_s: float,
        room: Room,
        place: Place,
    ) -> None:
        super().__init__(config, server_state, {})
        self.conn = StrictConnection(h11.SERVER)
        self.logger = logger
        # What operators do is logged by the node; the access log belongs to the program.
        self.access_log = False
        self._timeout_s = timeout_s
        self._room = room
        self._place = place
        self._has_begun = False
        self._is_known = False
        # Runs while a part of a request is missing.
        self._arriving: asyncio.TimerHandle | None = None
        # Runs while the client does not read.
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._place.close = transport.abort
        certificate = transport.get_extra_info("peercert")
        self.app_state = {STATE_ON_KNOWN: self.on_known}
        if certificate:
            self.app_state[STATE_CERTIFICATE] = _name_in(certificate)
        self._expect_request(min(self._timeout_s, _FIRST_BYTE_S_MAX))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._end_timers()
        self._room.leave(self._place)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something of a request has come."""
        if not self._has_begun:
            self._has_begun = True
            self._stop_arriving()
        self._expect_request(self._timeout_s)
        super().data_received(data)
        if self._has_whole_request():
            self._stop_arriving()
        self._settle()

    def on_known(self) -> None:
        """The client has shown in this request who it is."""
        self._is_known = True
        self._settle()

    def on_response_complete(self) -> None:
        """An answer was given; requests that came meanwhile are begun."""
        self._is_known = False
        super().on_response_complete()
        if not self._has_whole_request():
            self._expect_request(self._timeout_s)
        self._settle()

    def pause_writing(self) -> None:
        """The client does not read what it was sent."""
        super().pause_writing()
        if self._reading is None:
            self._reading = self.loop.call_later(self._timeout_s, self.transport.abort)
        self._settle()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._stop_reading()
        self._settle()

    def _settle(self) -> None:
        """Have the connection kept while somebody who is known waits for an answer."""
        if self._is_known and self._arriving is None and self._reading is None:
            self._room.keep(self._place)
        else:
            self._room.release(self._place)

    def _expect_request(self, timeout_s: float) -> None:
        if self._arriving is None and not self.transport.is_closing():
            self._arriving = self.loop.call_later(timeout_s, self._on_too_slow)

    def _has_whole_request(self) -> bool:
        """Whether nothing of a request that has begun is missing."""
        if self.conn.their_state is h11.IDLE:
            return not self.conn.trailing_data[0]
        return self.conn.their_state is not h11.SEND_BODY

    def _on_too_slow(self) -> None:
        self._arriving = None
        if self.transport.is_closing():
            return
        if self._unanswered() is None and not self.conn.trailing_data[0]:
            # Nothing was asked, so there is nothing to answer.
            self.transport.close()
            return
        text = f"the request did not arrive within {self._timeout_s:g} s"
        self._refuse(make_problem(408, text))

    def _unanswered(self) -> RequestResponseCycle | None:
        """The request that the application is at."""
        # None until the first request; uvicorn's own annotation does not say so.
        cycle: RequestResponseCycle | None = self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._refuse(make_problem(400, msg))

    def _refuse(self, problem: Problem) -> None:
        """Answer without the application, and close the connection."""
        cycle = self._unanswered()
        if cycle is not None:
            if cycle.response_started:
                self.transport.abort()
                return
            # Whatever the application answers later is dropped.
            cycle.disconnected = True
            cycle.message_event.set()
        body = msgspec.json.encode(problem)
        headers = [
            ("content-type", CONTENT_TYPE),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        response = h11.Response(
            status_code=problem.status, headers=headers, reason=problem.title.encode()
        )
        try:
            parts = [self.conn.send(it) for it in (response, h11.Data(body), h11.EndOfMessage())]
        except h11.LocalProtocolError:
            self.transport.abort()
            return
        self.transport.write(b"".join(it for it in parts if it))
        self.transport.close()

    def _stop_arriving(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _end_timers(self) -> None:
        self._stop_arriving()
        self._stop_reading()


def _name_in(certificate: dict[str, Any]) -> str:
    names = [str(value) for _kind, value in certificate.get("subjectAltName", ())]
    parts = [str(value) for part in certificate.get("subject", ()) for _key, value in part]
    return (names or parts or ["without a name"])[0]
