"""What a server of NATS JetStream is asked for, and what it sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from .options import ClientTlsFiles

NOT_FOUND = 404
_IDLE = 100
_NOT_IN_TIME = 408


class JetStreamEndpoint(msgspec.Struct, frozen=True):
    """A stream and how to get at it."""

    servers: tuple[str, ...]
    stream: str
    subject: str | None = None
    """Which messages are meant; all by default."""
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls: ClientTlsFiles = ClientTlsFiles()

    @property
    def shown(self) -> str:
        """For people, without secrets."""
        hosts = ", ".join(urlsplit(it).netloc.rpartition("@")[2] for it in self.servers)
        return f"stream {self.stream!r} of NATS at {hosts}"


class JetStreamError(OSError):
    """The server answered that it will not; `status` is as in HTTP."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class StreamInfo(NamedTuple):
    """What a stream is and has."""

    created: int
    """Microseconds since 1970: it tells a stream from later ones of the same name."""
    is_readable: bool
    """Whether it allows consumers besides those that do its work."""
    last: int


class StreamMessage(NamedTuple):
    """A message in a stream."""

    sequence: int
    size: int
    data: bytes


class PullRequest:
    """A request for messages. What it brings is handed on, even if nobody waits for it any more."""

    def __init__(self, access: JetStreamEndpoint, batch: int, on_found: Callable[[StreamMessage], None]) -> None:
        self._access = access
        self._batch = batch
        self._on_found = on_found
        self.received = 0
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        """What went wrong, if something did."""

    async def take(self, message: Any) -> None:
        """Be what is called with each answer of the server."""
        headers = message.headers or {}
        if (status := headers.get("Status")) and not message.data:
            self._on_status(int(status), headers.get("Description", ""))
            return
        size = int(headers.get("Nats-Msg-Size", len(message.data)))
        self.received += 1
        self._on_found(StreamMessage(_read_sequence(message.reply), size, message.data))
        # Not already when the server says that no more are there: one that is published at this
        # moment would still be sent to us.
        if self.received == self._batch:
            self.end()

    def _on_status(self, status: int, description: str) -> None:
        if status == _IDLE:
            return
        # Nothing there, or not in time.
        is_harmless = status in (NOT_FOUND, _NOT_IN_TIME)
        self.end(None if is_harmless else JetStreamError(status, f"{self._access.shown}: {description}"))

    def end(self, error: Exception | None = None) -> None:
        """No more will come."""
        if not self.ended.done():
            self.ended.set_result(error)

    async def wait(self, silence_s: float) -> None:
        """Until nothing more will come; nothing may happen for so long.

        Raises:
            OSError: it went wrong, or nothing happens.
        """
        while not self.ended.done():
            before = self.received
            await asyncio.wait([self.ended], timeout=silence_s)
            if not self.ended.done() and self.received == before:
                raise TimeoutError(f"no answer in time: {self._access.shown}")
        if (error := self.ended.result()) is not None:
            raise error


def _read_sequence(reply: str) -> int:
    """The sequence of a message, from the subject on which it is to be acknowledged."""
    parts = reply.split(".")
    # Nine parts with the sequence as the sixth; or two more before them, and perhaps some behind.
    return int(parts[5] if len(parts) == 9 else parts[7])
