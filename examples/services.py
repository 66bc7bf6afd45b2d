"""Services on three nodes: a call within a call, an event for each group, and a stream.

Run it with `python -m examples.services`. The nodes live in one process to keep it short; with the
URL of a transporter, such as `cells://10.0.0.1:26502/C1` or `nats://10.0.0.1`, each is a program on
a machine of its own.
"""

import asyncio
from collections.abc import AsyncIterator

from postroad import run
from postroad.services import Broker, Context, Service, action, event


class Kitchen(Service):
    name = "kitchen"

    @action
    async def brew(self, ctx: Context, drink: str, cups: int = 1) -> str:
        print(f"the kitchen brews {drink} for {ctx.meta['guest']}")
        await ctx.emit("drink.ready", {"drink": drink})
        return f"{cups} x {drink}"

    @action
    async def menu(self, ctx: Context) -> AsyncIterator[bytes]:
        return self._write_menu()

    async def _write_menu(self) -> AsyncIterator[bytes]:
        for drink in ("tea", "coffee"):
            yield f"{drink}\n".encode()


class Waiter(Service):
    name = "waiter"
    dependencies = ("kitchen",)

    @action
    async def order(self, ctx: Context, drink: str) -> str:
        # Who it is for goes along.
        return f"the ordered {await ctx.call('kitchen.brew', {'drink': drink})}"


class Bell(Service):
    name = "bell"

    async def started(self) -> None:
        self.has_rung = asyncio.Event()

    @event("drink.*")
    async def ring(self, ctx: Context, drink: str) -> None:
        print(f"the bell rings: {ctx.event}, {drink}")
        self.has_rung.set()


async def main() -> None:
    bell = Bell()
    back, front, door = (Broker(name, transporter="cells") for name in ("back", "front", "door"))
    back.add(Kitchen())
    front.add(Waiter(), bell)
    async with back, front, door:
        await door.wait_for_services(["waiter", "kitchen"])
        served = await door.call("waiter.order", {"drink": "tea"}, meta={"guest": "Ada"})
        await bell.has_rung.wait()
        print(f"the guest has {served}")
        async with await door.call("kitchen.menu") as menu:
            print("on the menu:", b"".join([chunk async for chunk in menu]).decode().split())


if __name__ == "__main__":
    run(main())
