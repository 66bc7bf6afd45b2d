"""Sends what nodes publish, as fast as domains on the way and the receiver take it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from postroad.cells import CellAddress, CellBusyError, CellDomain, NoRouteError
from postroad.cells.messages import PING
from postroad.core import PostroadError, ThrottledLogger, tracing
from postroad.core.limits import MIB
from postroad.services.errors import QueueIsFullError
from postroad.services.kinds import Kind

from .cells_lanes import PACKET_BYTES, WINDOW_BYTES, Lane, Letter
from .cells_letters import encode_letter

logger = logging.getLogger("postroad.services.transporters")

WAITING_BYTES_MAX = 64 * MIB
"""More than this waits for nobody. Half of it at most for one destination, as long as others have
nothing waiting: none may have more than what is still free."""

# Pauses before a domain is asked again that had no room.
_RETRY_S = 0.01
_PING_TIMEOUT_S = 5.0
_LOG_INTERVAL_S = 10.0
# What a node is asked that may be gone: that it does not arrive is an answer too.
_QUESTIONS = frozenset({Kind.PING.value, Kind.DISCOVER.value})


class Outgoing:
    """All that one node sends.

    Args:
        domain: what sends.
        sender: the cell it is sent by.
        on_missing: told of lanes that lead nowhere, and who said so.
    """

    def __init__(
        self,
        domain: CellDomain,
        sender: CellAddress,
        on_missing: Callable[[Lane, NoRouteError], None],
    ) -> None:
        self._domain = domain
        self._sender = sender
        self._on_missing = on_missing
        self._loop = asyncio.get_running_loop()
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        # Lanes with letters to be sent in this order, once for each letter.
        self._due: list[Lane] = []
        self._is_scheduled = False
        self._waiting = 0
        self._turn = 0
        self._latest: Lane | None = None
        # Lanes that wait for something else than the end of this turn.
        self._retries: dict[Lane, asyncio.TimerHandle] = {}
        self._questions: dict[Lane, asyncio.Task[None]] = {}
        # Set while somebody waits for everything to be sent.
        self._finished: asyncio.Event | None = None
        self.lost = 0

    # What is published.

    def put(self, lane: Lane, word: str, data: bytes) -> None:
        """Have a packet sent at the end of this turn; QueueIsFullError if too much waits."""
        size = len(data) + PACKET_BYTES
        if lane.waiting + size > WAITING_BYTES_MAX - self._waiting:
            raise QueueIsFullError(
                f"{lane.waiting} bytes wait to be sent to {lane.path}, {self._waiting} to all"
            )
        if lane.add(word, data, size, self._turn):
            self._due.append(lane)
            if not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon(self._send_due)
        self._waiting += size
        self._latest = lane

    def put_to_all(self, lane: Lane, word: str, data: bytes) -> None:
        """The same for a topic: after all that was published before, and before what comes."""
        self._turn += 1
        self.put(lane, word, data)
        self._turn += 1

    async def drain(self) -> None:
        """Wait for whoever the last packet went to, while much is on its way there."""
        if self._latest is not None:
            await self._latest.room()

    # How it is sent.

    def flush(self) -> None:
        """Send now what was to be sent at the end of this turn."""
        due, self._due = self._due, []
        for lane in due:
            if not lane.is_blocked and lane.letters:
                self._send_first(lane)

    def _send_due(self) -> None:
        self._is_scheduled = False
        self.flush()

    def _resume(self, lane: Lane) -> None:
        """What kept letters from being sent may be over."""
        lane.is_blocked = False
        while lane.letters and not lane.is_blocked:
            self._send_first(lane)
        lane.tell_room()

    def _send_first(self, lane: Lane) -> None:
        if lane.is_confirmed and lane.under_way >= WINDOW_BYTES:
            lane.is_blocked = True
            return
        # It is out of the lane first: to send it may have others published, or everything cleared.
        letter = lane.take_first()
        self._waiting -= letter.size
        try:
            if tracing.tracer is None:
                lane.send(self._domain, self._sender, encode_letter(letter.packets))
            else:
                with tracing.scope(letter.span):
                    lane.send(self._domain, self._sender, encode_letter(letter.packets))
        except CellBusyError:
            self._put_back(lane, letter)
        except PostroadError as error:
            self._lose(lane, letter, error)
        else:
            self._note_sent(lane, letter)
        self._tell_if_finished()

    def _put_back(self, lane: Lane, letter: Letter) -> None:
        lane.put_back(letter)
        self._waiting += letter.size
        lane.is_blocked = True
        if lane not in self._retries:
            self._retries[lane] = self._loop.call_later(_RETRY_S, self._retry, lane)

    def _note_sent(self, lane: Lane, letter: Letter) -> None:
        if not lane.is_confirmed:
            return
        lane.sent += letter.size
        if lane.under_way >= WINDOW_BYTES // 2 and lane not in self._questions:
            self._questions[lane] = self._loop.create_task(self._ask(lane))

    def _retry(self, lane: Lane) -> None:
        del self._retries[lane]
        self._resume(lane)

    def _lose(self, lane: Lane, letter: Letter, error: PostroadError) -> None:
        self.lost += len(letter.packets)
        if not all(word in _QUESTIONS for word, _ in letter.packets):
            self._log.log(
                str(lane.path), self._loop.time(), "packets to %s were lost: %s", lane.path, error
            )
        if isinstance(error, NoRouteError):
            self._on_missing(lane, error)

    # How far it came.

    async def _ask(self, lane: Lane) -> None:
        """Ask a node again and again how far it is, until it has nearly everything."""
        try:
            while lane.under_way >= WINDOW_BYTES // 2:
                sent = lane.sent
                if await self._has_come(lane):
                    lane.confirm(sent)
                    self._resume(lane)
        finally:
            del self._questions[lane]

    async def _has_come(self, lane: Lane) -> bool:
        """Whether nothing is under way any more that was sent before: it came, or is lost."""
        try:
            await self.ping(lane)
        except CellBusyError:
            await asyncio.sleep(_RETRY_S)
            return False
        except NoRouteError as error:
            self._on_missing(lane, error)
        except PostroadError as error:
            logger.debug("no answer from %s: %s", lane.path, error)
        return True

    async def ping(self, lane: Lane) -> None:
        """Return when a cell has got all that was sent to it before.

        Every cell answers this by itself, and messages do not overtake each other.

        Raises:
            NoRouteError, CellBusyError, ReplyTimeoutError: it did not arrive, or was not answered.
        """
        await self._domain.ping(lane.path, PING, b"", _PING_TIMEOUT_S)

    # The end.

    def clear(self, lane: Lane) -> None:
        """Give up what waits for a destination."""
        self._waiting -= lane.waiting
        self.lost += lane.clear()
        self._tell_if_finished()
        lane.is_blocked = False
        if retry := self._retries.pop(lane, None):
            retry.cancel()
        if question := self._questions.get(lane):
            question.cancel()

    async def finish(self, timeout_s: float) -> None:
        """Send all that waits, as far as that is possible soon."""
        self.flush()
        if self._waiting:
            self._finished = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._finished.wait()

    def _tell_if_finished(self) -> None:
        if self._finished is not None and not self._waiting:
            self._finished.set()

    async def close(self) -> None:
        """Ask nobody any more. All lanes were cleared before."""
        if questions := list(self._questions.values()):
            await asyncio.wait(questions)
