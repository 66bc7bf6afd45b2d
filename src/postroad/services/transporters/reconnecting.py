"""One connection, made again when it is lost: what transporters with a server have in common."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress

from postroad.core.timing import backoff

from .transporter import Transporter

logger = logging.getLogger("postroad.services.transporters")

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0
CONNECT_TIMEOUT_S = 5.0
GOODBYE_S = 2.0
"""How long `disconnect` waits for what was published to leave."""
STEADY_S = 5.0
"""A connection that lasted so long was a good one: the next is tried at once."""


class ReconnectingTransporter(Transporter):
    """Keeps a connection. A subclass writes one from beginning to end, and how to flush it."""

    def __init__(self, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._is_up = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self._is_up

    @abstractmethod
    async def _run_session(self, ready: Callable[[], None]) -> None:
        """One connection from beginning to end.

        Calls `ready` when everything is subscribed to, which must be within the time allowed.
        Raises OSError when the connection cannot be made or is lost, and cleans up after itself,
        also when it is cancelled.
        """

    @abstractmethod
    async def _flush(self) -> None:
        """Wait until what was published has left; `disconnect` gives it a moment."""

    async def connect(self) -> None:
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(first), name=f"{self.name} of the services")
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await asyncio.shield(first)
        except TimeoutError:
            await self._end()
            raise TimeoutError(f"{self.name}: {self._too_late()}") from None
        except BaseException:
            await self._end()
            raise

    async def disconnect(self) -> None:
        if self._is_up:
            # That the connection is lost meanwhile is no news to who wants to end it.
            with suppress(OSError):
                async with asyncio.timeout(GOODBYE_S):
                    await self._flush()
        await self._end()

    async def _end(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        self._lower()

    def _lower(self) -> None:
        """There is no connection any more."""
        self._is_up = False

    async def _keep(self, first: asyncio.Future[None]) -> None:
        """Have a session, and another when that is lost; the first must succeed."""
        loop = asyncio.get_running_loop()
        attempt, since = 0, 0.0

        def ready() -> None:
            nonlocal since
            since = loop.time()
            self._is_up = True
            is_again = first.done()
            if not is_again:
                first.set_result(None)
            self.listener.connected(is_again=is_again)

        while True:
            reason = await self._one_session(ready)
            if not first.done():
                first.set_exception(ConnectionError(f"{self.name}: {reason}"))
                return
            if self._is_up:
                self._lose(reason)
                # Who lets us in only to throw us out again is not asked ten times a second.
                attempt = 0 if loop.time() - since > STEADY_S else attempt
            attempt += 1
            await asyncio.sleep(
                backoff(
                    attempt,
                    initial_delay_s=RETRY_FIRST_S,
                    max_delay_s=RETRY_MAX_S,
                    jitter=random.random(),
                )
            )

    def _lose(self, reason: str) -> None:
        self._lower()
        logger.warning("%s: the connection is lost: %s", self.name, reason)
        self.listener.disconnected(reason)

    async def _one_session(self, ready: Callable[[], None]) -> str:
        """Run a session to its end; says why it ended."""
        limit = asyncio.timeout(self._connect_timeout_s)

        def in_time() -> None:
            limit.reschedule(None)
            ready()

        # A task of its own: task groups forget that they were cancelled when they fail meanwhile.
        session = asyncio.create_task(self._run_session(in_time), name=f"a session of {self.name}")
        try:
            async with limit:
                await asyncio.wait([session])
        except TimeoutError:
            return self._too_late()
        finally:
            session.cancel()
            await asyncio.wait([session])
            reason = self._reason_of(session)
        return reason

    def _reason_of(self, session: asyncio.Task[None]) -> str:
        error = None if session.cancelled() else session.exception()
        if error is None:
            return "the server closed the connection"
        causes = [*_causes(error)]
        if not all(isinstance(cause, OSError) for cause in causes):
            # Whatever it is, the next session may do better than none.
            logger.error("%s: a session failed", self.name, exc_info=error)
        return str(causes[0]) or type(causes[0]).__name__

    def _too_late(self) -> str:
        return f"no connection within {self._connect_timeout_s:g} s"


def _causes(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for one in error.exceptions:
        yield from _causes(one)
