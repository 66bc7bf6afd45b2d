"""Somebody at a node who calls actions, sends events and reads streams, and checks what comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

from postroad.services import Broker, IncomingStream
from postroad.services.errors import MoleculerClientError, MoleculerError
from postroad.testing import require
from tests.simulation.brokers.books import Books
from tests.simulation.brokers.offers import (
    BROKEN,
    CHUNK_BYTES,
    EVENT,
    REFUSED,
    chunks_of,
    read_whole,
)

TRIES = 3
# What a call may take beyond its own time: the pauses between its tries.
_PAUSES_S = 0.1 + 0.2
_SIZES = (10, 10, 3_000, 3_000, 3 * CHUNK_BYTES, 12 * CHUNK_BYTES)


class Limit(NamedTuple):
    what: str
    deadline: float
    tries: int


class Clerk:
    """Uses a broker."""

    def __init__(self, broker: Broker, books: Books, rng: Random) -> None:
        self.broker = broker
        self.books = books
        self.rng = rng
        self.limits: dict[int, Limit] = {}
        """By numbers, what has to end in time."""

    @contextmanager
    def _limited(self, number: int, what: str, seconds: float, tries: int = 1) -> Iterator[None]:
        now = asyncio.get_running_loop().time()
        self.limits[number] = Limit(f"{what} {number}", now + seconds, tries)
        try:
            yield
        finally:
            del self.limits[number]

    def postpone(self, seconds: float) -> None:
        """The process stood still for so long: tries that are to come begin later."""
        for number, limit in self.limits.items():
            if limit.tries > 1:
                self.limits[number] = limit._replace(deadline=limit.deadline + seconds)

    async def _call(
        self, action: str, number: int, params: dict[str, Any], timeout_s: float, **options: Any
    ) -> Any:
        tries = 1 + options.get("retries", 0)
        limit_s = tries * timeout_s + (tries > 1) * _PAUSES_S
        with self._limited(number, action, limit_s, tries):
            request = {"number": number, **params}
            return await self.broker.call(action, request, timeout_s=timeout_s, **options)

    def _some_time(self) -> float:
        return self.rng.choice((0.3, 1.0, 2.5))

    def _some_seconds(self) -> float:
        return self.rng.choice((0.0, 0.1, 0.5, 1.5))

    # Calls.

    async def double(self, timeout_s: float, **options: Any) -> None:
        number, value = self.books.ask(), self.rng.randrange(1_000)
        result = await self._call("quick.double", number, {"value": value}, timeout_s, **options)
        self.books.check_result(number, result, 2 * value)

    async def double_at(self, timeout_s: float) -> None:
        endpoints = self.broker.registry.actions.get("quick.double") or ()
        nodes = [endpoint.node_id for endpoint in endpoints]
        if nodes:
            await self.double(timeout_s, node_id=self.rng.choice(nodes))

    async def refuse(self, timeout_s: float) -> None:
        number = self.books.ask()
        try:
            result = await self._call("quick.refuse", number, {}, timeout_s)
        except MoleculerClientError as error:
            if error.type != REFUSED:
                raise
            require(error.data == {"number": number}, f"call {number} failed with {error.data}")
            require(bool(self.books.begun[number]), f"call {number} was refused by nobody")
            return
        require(False, f"call {number} fails, and got {result}")

    async def hesitate(self, timeout_s: float) -> None:
        number = self.books.ask(TRIES)
        result = await self._call("quick.hesitate", number, {}, timeout_s, retries=TRIES - 1)
        self.books.check_result(number, result)

    async def wait(self, timeout_s: float) -> None:
        number, seconds = self.books.ask(), min(self._some_seconds(), timeout_s)
        result = await self._call("slow.wait", number, {"seconds": seconds / 2}, timeout_s)
        self.books.check_result(number, result)

    async def overstay(self, timeout_s: float) -> None:
        number, seconds = self.books.ask(), timeout_s + 1.0
        try:
            result = await self._call("slow.wait", number, {"seconds": seconds}, timeout_s)
        except MoleculerError:
            return
        require(False, f"call {number} takes {seconds} s, has {timeout_s} s, and got {result}")

    async def relay(self, timeout_s: float) -> None:
        number, seconds = self.books.ask(), min(self._some_seconds(), timeout_s)
        result = await self._call("quick.relay", number, {"seconds": seconds / 2}, timeout_s)
        self.books.check_result(number, result)

    # Events.

    def _order(self, number: int, *, fails: bool = False) -> dict[str, Any]:
        return {"number": number, "seconds": self._some_seconds() / 2, "fails": fails}

    async def emit(self, timeout_s: float) -> None:
        await self.broker.emit(EVENT, self._order(self.books.tell()))

    async def broadcast(self, timeout_s: float) -> None:
        await self.broker.broadcast(EVENT, self._order(self.books.tell(all_get_it=True)))

    async def emit_acked(self, timeout_s: float) -> None:
        number = self.books.tell()
        groups = self.broker.registry.events.groups_of(EVENT)
        with self._limited(number, "acked event", timeout_s):
            await self.broker.emit(EVENT, self._order(number), ack=True, timeout_s=timeout_s)
        self.books.check_handled(number, groups)

    async def emit_refused(self, timeout_s: float) -> None:
        """No handler succeeds, so there is no ack, unless there is no handler."""
        number = self.books.tell()
        groups = self.broker.registry.events.groups_of(EVENT)
        order = self._order(number, fails=True)
        try:
            with self._limited(number, "acked event", timeout_s):
                await self.broker.emit(EVENT, order, ack=True, timeout_s=timeout_s)
        except MoleculerError:
            return
        require(not groups, f"event {number} is acked, and every handler of {groups} fails")

    # Streams.

    async def get(self, timeout_s: float, *, breaks: bool = False) -> None:
        number, size = self.books.ask(), self.rng.choice(_SIZES)
        params = {"size": size, "breaks": breaks}
        stream = await self._call("files.get", number, params, timeout_s)
        require(isinstance(stream, IncomingStream), f"call {number} got {stream!r}")
        async with stream:
            try:
                await read_whole(stream, number, size)
            except MoleculerClientError as error:
                if not (breaks and error.type == BROKEN):
                    raise

    async def get_broken(self, timeout_s: float) -> None:
        await self.get(timeout_s, breaks=True)

    async def get_a_part(self, timeout_s: float) -> None:
        number = self.books.ask()
        params = {"size": _SIZES[-1], "breaks": False}
        async with await self._call("files.get", number, params, timeout_s) as stream:
            await anext(stream)

    async def put(self, timeout_s: float, *, breaks: bool = False) -> None:
        number, size = self.books.ask(), self.rng.choice(_SIZES)
        stream = chunks_of(number, size, breaks=breaks)
        try:
            result = await self._call("files.put", number, {"size": size}, timeout_s, stream=stream)
        except MoleculerClientError as error:
            if not (breaks and error.type == BROKEN):
                raise
            return
        require(not breaks, f"call {number} got {result} for a stream that broke off")
        self.books.check_result(number, result, size)

    async def put_broken(self, timeout_s: float) -> None:
        await self.put(timeout_s, breaks=True)

    def do_something(self) -> tuple[str, Coroutine[Any, Any, None]]:
        chosen = self.rng.choice(ACTS)
        return chosen.name, chosen.act(self, self._some_time())


class Act(NamedTuple):
    act: Callable[[Clerk, float], Coroutine[Any, Any, None]]
    needs: frozenset[str]
    """The services without which it cannot succeed."""

    @property
    def name(self) -> str:
        return self.act.__name__


ACTS = (
    Act(Clerk.double, frozenset({"quick"})),
    Act(Clerk.double_at, frozenset({"quick"})),
    Act(Clerk.refuse, frozenset({"quick"})),
    Act(Clerk.hesitate, frozenset({"quick"})),
    Act(Clerk.wait, frozenset({"slow"})),
    Act(Clerk.overstay, frozenset({"slow"})),
    Act(Clerk.relay, frozenset({"quick", "slow"})),
    Act(Clerk.emit, frozenset()),
    Act(Clerk.broadcast, frozenset()),
    Act(Clerk.emit_acked, frozenset()),
    Act(Clerk.emit_refused, frozenset()),
    Act(Clerk.get, frozenset({"files"})),
    Act(Clerk.get_broken, frozenset({"files"})),
    Act(Clerk.get_a_part, frozenset({"files"})),
    Act(Clerk.put, frozenset({"files"})),
    Act(Clerk.put_broken, frozenset({"files"})),
)
