"""What scenario `brokers` has found once, as small as it can be told."""

import asyncio

import pytest

from postroad.services import Context, Service, action
from postroad.services.packets import Request
from postroad.services.serving import Serving
from postroad.services.transit import Done
from tests.support.services.nodes import Nodes


class Diary(Service):
    name = "diary"

    def __init__(self) -> None:
        self.entries: list[str] = []

    async def stopped(self) -> None:
        self.entries.append("stopped")

    @action
    async def write(self, ctx: Context) -> str:
        self.entries.append("begun")
        await asyncio.sleep(0)
        self.entries.append("ended")
        return "written"


async def test_service_is_not_stopped_before_a_call_that_just_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call has a task that has not begun; the service waits for it as for others."""
    diary = Diary()
    receive = Serving.receive
    removing: list[asyncio.Task[None]] = []
    async with Nodes() as nodes:
        near = await nodes.add("near", diary)
        far = await nodes.add("far")

        def remove_and_receive(self: Serving, request: Request, done: Done | None) -> None:
            removing.append(asyncio.get_running_loop().create_task(near.remove("diary")))
            receive(self, request, done)

        monkeypatch.setattr(Serving, "receive", remove_and_receive)
        assert await far.call("diary.write") == "written"
        await asyncio.gather(*removing)
    assert diary.entries == ["begun", "ended", "stopped"]
