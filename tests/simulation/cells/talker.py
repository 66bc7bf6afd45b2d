"""Sends messages from one process, and watches what becomes of its calls."""

from __future__ import annotations

import asyncio
from random import Random
from typing import NamedTuple

from postroad.cells import CellDomain, CellPath, HopLimitExceededError, Role, RoutingError
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.envelope_codec import encode_envelope
from postroad.core.errors import MessagingError
from postroad.testing import SimCluster, require
from tests.simulation.cells.books import MARGIN_S, Books, Disturbance, Sent, Way, write_number
from tests.simulation.cells.plan import CELL_NAMES, QUEUES, TOPICS

_INTERVAL_S = 0.3
_TIMEOUTS_S = (0.2, 1.0, 4.0)
_PADDINGS = (0, 0, 100, 5_000)
# Of all that a satellite says, what it says as somebody else.
_FORGED_SHARE = 0.05
# More than a socket takes from somebody whom nobody reads.
_FLOOD = 30
_FLOOD_PADDING = 20_000


class _Open(NamedTuple):
    sent: Sent
    paused_s: float
    """How long its process had been paused before."""


class Talker:
    """The messages of one process."""

    def __init__(
        self,
        sim: SimCluster,
        label: str,
        domain: CellDomain,
        books: Books,
        pauses: Disturbance,
        rng: Random,
        names: list[str],
    ) -> None:
        self._sim = sim
        self._label = label
        self._domain = domain
        self._books = books
        self._pauses = pauses
        self._rng = rng
        self._names = names
        self._open: dict[int, _Open] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        # Whether it says anything by itself.
        self.is_talkative = True

    async def talk(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / _INTERVAL_S))
            if self.is_talkative:
                self._say_something()

    def _say_something(self) -> None:
        rng = self._rng
        if rng.random() < _FORGED_SHARE:
            self._forge()
            return
        way = rng.choice((Way.CALL, Way.CALL, Way.TELL, Way.PUBLISH))
        padding = rng.choice(_PADDINGS)
        if way is Way.PUBLISH:
            self.publish(rng.choice(TOPICS), padding)
            return
        destination = rng.choice(QUEUES) if rng.random() < 0.5 else self._draw_path()
        timeout_s = rng.choice(_TIMEOUTS_S)
        if way is Way.CALL:
            self.begin_call(destination, timeout_s, padding, wait=rng.random() < 0.5)
        else:
            self.send_nowait(destination, timeout_s if rng.random() < 0.5 else None, padding)

    def _forge(self) -> None:
        """Pretend that a message came from another domain, by way of this one."""
        own = self._domain.name
        links = self._domain.links.by_domain
        if self._domain.identity.role is Role.CORE or not links:
            return
        link = links[self._rng.choice(sorted(links))]
        victim = self._rng.choice([name for name in self._names if name != own])
        destination = f"{self._rng.choice(CELL_NAMES)}@{self._rng.choice(self._names)}"
        sent = self._books.write(Way.TELL, self._label, destination)
        forged = Envelope(
            id=self._rng.randbytes(16),
            destination=CellPath.parse(destination),
            source=CellPath.of(f"forger@{victim}", f"*@{victim}", f"*@{own}"),
            payload=write_number(sent.number),
        )
        link.try_send_encoded(encode_envelope(forged))

    def _draw_path(self) -> str:
        hops = self._rng.choice((1, 1, 1, 2))
        cells = (
            f"{self._rng.choice(CELL_NAMES)}@{self._rng.choice(self._names)}" for _ in range(hops)
        )
        return ":".join(cells)

    def flood(self, queue: str, topic: str) -> None:
        for _ in range(_FLOOD):
            self.begin_call(queue, max(_TIMEOUTS_S), _FLOOD_PADDING, wait=False)
            self.publish(topic, _FLOOD_PADDING)

    def pester(self, destination: str) -> None:
        """Call somebody again and again, without waiting for an answer."""
        for timeout_s in _TIMEOUTS_S:
            self.begin_call(destination, timeout_s, wait=False)
            self.send_nowait(destination, timeout_s)

    # One message.

    def publish(self, topic: str, padding: int = 0) -> Sent:
        sent = self._books.write(Way.PUBLISH, self._label, topic)
        self._domain.publish(topic, write_number(sent.number, padding))
        return sent

    def send_nowait(
        self, destination: str, timeout_s: float | None = None, padding: int = 0
    ) -> Sent:
        """Send a message that nobody answers; it may be refused."""
        sent = self._books.write(Way.TELL, self._label, destination, timeout_s)
        payload = write_number(sent.number, padding)
        try:
            self._domain.send_nowait(destination, payload, timeout=timeout_s)
        except RoutingError as error:
            self._take_refusal(sent, error)
        return sent

    def begin_call(
        self, destination: str, timeout_s: float, padding: int = 0, *, wait: bool = True
    ) -> asyncio.Task[MessagingError | None]:
        """Call in the background; the task tells with which error it ended."""
        call = self.call(destination, timeout_s, padding, wait=wait)
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def call(
        self, destination: str, timeout_s: float, padding: int = 0, *, wait: bool = True
    ) -> MessagingError | None:
        sent = self._books.write(Way.CALL, self._label, destination, timeout_s)
        self._open[sent.number] = _Open(sent, self._pauses.total_s)
        # No `finally`: what a killed process leaves is disposed of at the very end.
        error = await self._try_to_call(sent, padding, wait=wait)
        self._check_time(self._open.pop(sent.number))
        return error

    async def _try_to_call(self, sent: Sent, padding: int, *, wait: bool) -> MessagingError | None:
        payload = write_number(sent.number, padding)
        try:
            reply = await self._domain.call(
                sent.destination, payload, timeout=sent.timeout_s, wait=wait
            )
        except RoutingError as error:
            self._take_refusal(sent, error)
            return error
        except MessagingError as error:
            return error
        self._books.check_reply(sent, reply)
        return None

    def _take_refusal(self, sent: Sent, error: RoutingError) -> None:
        require(not isinstance(error, HopLimitExceededError), f"{sent} went in circles: {error}")
        self._books.deny(sent, error)

    # Calls end.

    def check_open_calls(self) -> None:
        for call in self._open.values():
            self._check_time(call)

    def _check_time(self, call: _Open) -> None:
        assert call.sent.timeout_s is not None
        excused_s = self._pauses.total_s - call.paused_s + MARGIN_S
        late_s = self._sim.now - call.sent.time - call.sent.timeout_s
        require(late_s <= excused_s, f"{call.sent} is {late_s:.3f} s late with its end")

    @property
    def unfinished(self) -> list[str]:
        return [str(call.sent) for call in self._open.values()]
