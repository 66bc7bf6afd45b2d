"""Services, handlers, waiting and counting for tests over real sockets on loopback."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, Self, TypeVar

import pytest

from postroad.core.errors import MessagingError, Outcome
from postroad.net import Address, Limits, MessagingService, ProtocolConfig, RawMessage
from tests.support.deadlines import DEADLINE_S, eventually

E = TypeVar("E", bound=MessagingError)
CLUSTER = "net-tests"
LOOPBACK = "127.0.0.1"


class Speech(NamedTuple):
    """A profile and the newest version of it that a service speaks."""

    profile: str
    version: int

    @property
    def protocol(self) -> ProtocolConfig:
        profile = "documented" if self == LOCAL else self.profile
        return ProtocolConfig(profile=profile, version_max=self.version)

    def __str__(self) -> str:
        return f"{self.profile}-{self.version}"


NEWEST = Speech("documented", 3)
OLDER = [Speech("documented", 1), Speech("documented", 2), Speech("zeebe", 1), Speech("zeebe", 2)]
SPEECHES = [*OLDER, NEWEST]
LOCAL = Speech("local", 3)
"""A service that asks itself: no socket, but what a remote caller would see."""

every_speech = pytest.mark.parametrize("speech", SPEECHES, ids=str)
every_way = pytest.mark.parametrize("speech", [*SPEECHES, LOCAL], ids=str)
here_or_there = pytest.mark.parametrize("speech", [NEWEST, LOCAL], ids=str)
older_speech = pytest.mark.parametrize("speech", OLDER, ids=str)


# Services.


def make_service(
    name: str,
    speech: Speech = NEWEST,
    *,
    bind: Address | str = f"{LOOPBACK}:0",
    cluster: str = CLUSTER,
    limits: Mapping[str, float] | None = None,
) -> MessagingService:
    """A service that is not started yet; `limits` are fields of Limits."""
    settings = {"stop_grace_s": 1.0, **(limits or {})}
    return MessagingService(
        cluster,
        name,
        bind,
        limits=Limits(**settings),  # type: ignore[arg-type]
        protocol=speech.protocol,
    )


class Gate:
    """A handler that answers when it is let go; remembers what it saw."""

    def __init__(self, answer: bytes = b"done") -> None:
        self.answer = answer
        self.messages: list[RawMessage] = []
        self.finished = 0
        self.cancelled = 0
        self._opened = asyncio.Event()

    async def __call__(self, message: RawMessage) -> bytes:
        self.messages.append(message)
        try:
            await self._opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.finished += 1
        return self.answer

    def open(self) -> None:
        """Let every message through, those to come as well."""
        self._opened.set()

    @property
    def waiting(self) -> int:
        """Handlers that have begun and are not over."""
        return len(self.messages) - self.finished - self.cancelled


class Pair(NamedTuple):
    """Two services that can reach each other."""

    client: MessagingService
    server: MessagingService
    gate: Gate
    """The server's handler of `gate`."""

    async def ask(self, subject: str, payload: bytes = b"", **options: Any) -> bytes:
        """A request from the client to the server."""
        return await self.client.request(self.server.address, subject, payload, **options)

    async def tell(self, subject: str, payload: bytes = b"", **options: Any) -> None:
        """A one-way message from the client to the server."""
        await self.client.send(self.server.address, subject, payload, **options)

    async def begin(self, count: int = 1, **options: Any) -> list[asyncio.Task[bytes]]:
        """So many requests that are at work in the server until its gate is opened."""
        options = {"timeout": DEADLINE_S} | options
        requests = [asyncio.create_task(self.ask("gate", **options)) for _ in range(count)]
        await eventually(lambda: self.gate.waiting == count)
        return requests

    async def fails(self, kind: type[E], outcome: Outcome, **options: Any) -> E:
        """A request from the client to the server must fail; see `expect_failure`."""
        return await expect_failure(self.client, self.server.address, kind, outcome, **options)

    async def is_still_open(self) -> None:
        """The first connection works, and is still the only one that ever was."""
        assert await self.ask("echo", b"still open") == b"still open"
        expected = 0 if self.client is self.server else 1
        assert self.client.statistics().connections_opened == expected
        assert self.client.statistics().protocol_errors == 0

    def handle(self, subject: str, handler: Callable[[RawMessage], Any]) -> None:
        """Have the server handle a subject like this from now on."""
        self.server.unsubscribe(subject)
        self.server.serve(subject, handler)


@asynccontextmanager
async def running_pair(
    client: Speech = NEWEST,
    server: Speech | None = None,
    *,
    client_limits: Mapping[str, float] | None = None,
    server_limits: Mapping[str, float] | None = None,
) -> AsyncIterator[Pair]:
    """A client and a server, which has a gate and the handlers of `subscribe_usual`.

    If LOCAL is spoken, both are the same, with the limits of the server.
    """
    async with AsyncExitStack() as stack:
        first = second = await stack.enter_async_context(
            make_service("server", server or client, limits=server_limits)
        )
        if client != LOCAL:
            first = await stack.enter_async_context(
                make_service("client", client, limits=client_limits)
            )
        subscribe_usual(second)
        gate = Gate()
        second.serve("gate", gate)
        yield Pair(first, second, gate)


def subscribe_usual(service: MessagingService) -> None:
    """`echo` answers, `hang` never does."""
    service.serve("echo", lambda message: message.payload)
    service.serve("hang", hang)


async def hang(_message: RawMessage) -> bytes:
    """A handler that works until it is cancelled."""
    await asyncio.Event().wait()
    return b""


def later(handler: Callable[[RawMessage], Any]) -> Callable[[RawMessage], Any]:
    """The same as an asynchronous handler."""

    async def handle(message: RawMessage) -> Any:
        await asyncio.sleep(0)
        return handler(message)

    return handle


class Stubborn:
    """A handler that ignores being cancelled until the block ends, so that no test hangs."""

    def __init__(self) -> None:
        self.begun = 0
        self._over = asyncio.Event()

    async def __call__(self, _message: RawMessage) -> bytes:
        self.begun += 1
        while not self._over.is_set():
            try:
                await self._over.wait()
            except asyncio.CancelledError:
                pass
        return b"at last"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()


# Waiting and counting.


async def turns(count: int = 20) -> None:
    """Let the event loop go round, with time for what is on its way through the kernel."""
    for _ in range(count):
        await asyncio.sleep(0.001)


async def stays(condition: Callable[[], object]) -> None:
    """The condition holds for some turns of the loop."""
    for _ in range(20):
        assert condition()
        await asyncio.sleep(0.002)


def open_sockets() -> set[str]:
    """The sockets of this process, as the kernel names them."""
    sockets = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            sockets.add(target)
    return sockets


def resident_bytes() -> int:
    """Memory this process really occupies."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Every task and socket that the block made is gone soon after it."""
    # The loop opens sockets of its own when it is first used.
    await asyncio.sleep(0)
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    yield
    await eventually(lambda: asyncio.all_tasks() <= tasks)
    await eventually(lambda: open_sockets() <= sockets)


async def expect_failure(
    client: MessagingService,
    address: Address | str,
    kind: type[E],
    outcome: Outcome,
    *,
    subject: str = "echo",
    payload: bytes = b"",
    match: str | None = None,
    retryable: bool | None = None,
    timeout: float = 4.0,
    **options: Any,
) -> E:
    """A request must fail with an error that says what to do, in so many words.

    Args:
        match: what else its text says.
        retryable: if not given, whatever was not sent is.
    """
    with pytest.raises(kind, match=match) as caught:
        await client.request(address, subject, payload, timeout=timeout, **options)
    error = caught.value
    assert error.outcome is outcome
    assert error.retryable is (outcome is Outcome.NOT_SENT if retryable is None else retryable)
    assert error.subject == subject
    assert error.timeout_s == timeout
    assert error.elapsed_s is not None and error.elapsed_s >= 0
    text = str(error)
    assert repr(subject) in text
    assert str(address) in text
    assert f"outcome {outcome.value}" in text
    allowed = f"{timeout:.3g} s" if timeout >= 1 else f"{timeout * 1000:.0f} ms"
    assert re.search(rf" after [\d.]+ m?s of {allowed} allowed", text)
    return error
