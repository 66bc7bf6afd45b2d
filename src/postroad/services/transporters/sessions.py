"""Transporters that have a client library send one packet after the other."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from postroad.services.errors import BrokerDisconnectedError

from .outbox import Outbox
from .reconnecting import CONNECT_TIMEOUT_S, ReconnectingTransporter, logger


class SessionTransporter(ReconnectingTransporter):
    """Base of those whose connection is a session of a client library.

    A subclass writes one session: connect, subscribe, say that it is ready, receive until the
    connection ends. What was published is sent in between, one packet after the other.
    """

    def __init__(self, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        super().__init__(connect_timeout_s=connect_timeout_s)
        self._outbox: Outbox[object] = Outbox()
        self._is_idle = asyncio.Event()

    @abstractmethod
    async def _session(self, ready: Callable[[], None]) -> None:
        """One connection from beginning to end.

        Calls `ready` when everything is subscribed to, which must be within the time allowed.
        Raises OSError when the connection cannot be made or is lost, and cleans up after itself,
        also when it is cancelled.
        """

    @abstractmethod
    async def _send(self, to: object, data: bytes) -> None:
        """Hand one packet to the client library; raises OSError if the connection is lost."""

    async def drain(self) -> None:
        await self._outbox.room()

    def _put(self, to: object, data: bytes) -> None:
        """Send a packet soon; `to` is what `_send` gets."""
        if not self._is_up:
            raise BrokerDisconnectedError
        self._check_size(data)
        self._outbox.put(to, data)
        self._is_idle.clear()

    async def _run_session(self, ready: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as tasks:

            def start_sending() -> None:
                self._is_idle.set()
                tasks.create_task(self._send_all())
                ready()

            await self._session(start_sending)
            raise ConnectionError("the server closed the connection")

    async def _flush(self) -> None:
        await self._is_idle.wait()

    def _lower(self) -> None:
        super()._lower()
        self._is_idle.set()
        if lost := self._outbox.clear():
            logger.warning("%s: %d packets were not sent", self.name, lost)

    async def _send_all(self) -> None:
        while True:
            to, data = await self._outbox.take()
            await self._send(to, data)
            if not len(self._outbox):
                self._is_idle.set()
