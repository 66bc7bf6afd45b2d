"""What a program has, told in lines."""

from postroad.cells import Cell, CellMessage
from postroad.durable import Message, Transaction
from postroad.flows import FlowContext, flow
from postroad.node import App, Consuming
from postroad.node.inventory import inventory
from postroad.services import Context, Service, action, event


class Greeter(Service):
    name = "greeter"
    version = 2

    @action
    async def hello(self, ctx: Context, name: str = "you", times: "int" = 1) -> str:
        return name * times

    @action(name="bye")
    async def leave(self, ctx: Context) -> None:
        return

    @event("user.*")
    async def heard(self, ctx: Context) -> None:
        return


@flow
async def book(ctx: FlowContext, room: int) -> str:
    return str(room)


class Clerk(Cell):
    def handle(self, message: CellMessage) -> None:
        return


async def take(message: Message, tx: Transaction) -> None:
    return


def test_everything_is_told() -> None:
    app = App(
        services=[Greeter()],
        flows=[book],
        consumers=[Consuming(queue="orders", handler=take)],
        cells=[Clerk("clerk")],
    )
    assert inventory(app) == {
        "actions": [
            "v2.greeter.hello(name: str = 'you', times: int = 1) -> str",
            "v2.greeter.bye() -> None",
        ],
        "events": ["user.* -> v2.greeter.heard"],
        "consumers": ["orders -> take"],
        "flows": ["book(room: int) -> str"],
        "cells": ["clerk"],
    }


def test_types_that_are_missing_are_told_by_name() -> None:
    class Odd(Service):
        name = "odd"

        @action
        async def take(self, ctx: Context, it: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
            return

    assert inventory(App(services=[Odd()])) == {"actions": ["odd.take(it: 'Nowhere') -> None"]}
    assert inventory(App()) == {}
