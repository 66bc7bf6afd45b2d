"""A node with something of everything, and an operator who comes to its office."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from postroad.admin.operations import OPERATIONS, NodeOffice, Office
from postroad.cells import Cell, CellMessage, command
from postroad.core.errors import Reject
from postroad.durable import Message, RetryPolicy, Transaction
from postroad.flows import FlowContext, FlowError, FlowSession, flow, responder
from postroad.node import App, Consuming, Node
from postroad.services import Context, Service, action, event
from tests.support.deadlines import DEADLINE_S
from tests.support.node.configs import config_of

T = TypeVar("T")


class Operator:
    """Says what it wants as texts and numbers, as it would come from outside."""

    def __init__(self, office: Office) -> None:
        self.office = office

    async def do(self, operation: str, **said: Any) -> Any:
        found = OPERATIONS.find(operation)
        result = await found(self.office, found.read_params(said))
        # Whatever it is, it can be sent.
        sent = msgspec.json.encode(result)
        assert msgspec.json.decode(sent, type=found.result) is not None
        return result

    async def until(self, is_so: Callable[[Any], object], operation: str, **said: Any) -> Any:
        """The result of an operation, when it is as it should be."""
        result = None
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    result = await self.do(operation, **said)
                    if is_so(result):
                        return result
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{operation} still says {result}") from None


class Greeter(Service):
    name = "greeter"
    version = 2

    @action
    async def hello(self, ctx: Context, name: str, times: int = 1) -> str:
        """Greets somebody."""
        return ", ".join([f"Hello {name}"] * times)

    @action
    async def fail(self, ctx: Context) -> None:
        raise ValueError("as told")

    @action
    async def count(self, ctx: Context, upto: int) -> AsyncIterator[bytes]:
        async def numbers() -> AsyncIterator[bytes]:
            for number in range(upto):
                yield b"%d" % number

        return numbers()

    @action(visibility="private")
    async def hidden(self, ctx: Context) -> None:
        """Nobody sees it."""

    @event("user.*")
    async def on_user(self, ctx: Context) -> None:
        self.heard = [*getattr(self, "heard", []), ctx.params]


class Echo(Cell):
    """Says what it hears."""

    def __init__(self) -> None:
        super().__init__("echo", consume=["shouts"], subscribe=["news"])

    def handle(self, message: CellMessage) -> Any:
        return message.body

    @command("twice")
    def twice(self, word: str) -> str:
        """Say a word twice."""
        return f"{word} {word}"


async def double(number: int) -> int:
    return number * 2


@flow
async def calculate(ctx: FlowContext, number: int, wait: bool = False) -> int:
    """Doubles a number.

    And more.
    """
    doubled = await ctx.step(double, number)
    ctx.set_query_handler("doubled", lambda: doubled)
    ctx.set_query_handler("broken", lambda: 1 // 0)
    if wait:
        doubled += await ctx.wait_for_signal("more", int)
    return await ctx.step(double, doubled)


@flow(concurrency=1)
async def stumble(ctx: FlowContext) -> None:
    raise KeyError("a bug")


@flow
async def refuse(ctx: FlowContext) -> None:
    raise FlowError("no")


@responder("elsewhere")
async def respond(ctx: FlowContext, session: FlowSession) -> None:
    """Answers others."""


async def take_order(message: Message, tx: Transaction) -> None:
    if message.body == b'"bad"' or message.body == b"bad":
        raise Reject("no good")


def make_app(**more: Any) -> App:
    consumer = Consuming(queue="orders", handler=take_order, retry=RetryPolicy(max_attempts=1))
    parts: dict[str, Any] = {
        "services": [Greeter()],
        "flows": [calculate, stumble, refuse, respond],
        "consumers": [consumer],
        "cells": [Echo()],
    }
    return App(**parts | more)


@asynccontextmanager
async def operated(
    directory: Path, name: str = "alpha", app: App | None = None, **more: Any
) -> AsyncIterator[Operator]:
    async with Node(config_of(directory, name, **more), app or make_app()) as node:
        yield Operator(NodeOffice(node))


class Colleagues:
    """Asks other nodes of this process, as the admin server does over the network."""

    def __init__(self) -> None:
        self.offices: dict[str, Office] = {}

    def __call__(self, member: str, operation: str, params: Mapping[str, Any], /) -> Awaitable[Any]:
        found = OPERATIONS.find(operation)
        return found(self.offices[member], found.read_params(params))


@asynccontextmanager
async def two_operated(directory: Path, **more: Any) -> AsyncIterator[tuple[Operator, Operator]]:
    """Alpha and beta, of one cluster."""
    colleagues = Colleagues()
    more.setdefault("admin", {"remote": "read"})
    async with Node(config_of(directory, "alpha", **more), make_app()) as alpha:
        seeds = {"cluster": {"seeds": [str(alpha.service.address)]}}
        app = make_app(flows=[], consumers=[])
        async with Node(config_of(directory, "beta", **seeds, **more), app) as beta:
            for node in (alpha, beta):
                colleagues.offices[node.name] = NodeOffice(node, colleagues)
            operators = [Operator(it) for it in colleagues.offices.values()]
            for operator in operators:
                await operator.until(lambda it: len(it) == 2, "cluster.ls")
                await operator.until(lambda it: len(it) == 2, "cells.domains")
            yield operators[0], operators[1]
