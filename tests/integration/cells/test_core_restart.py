"""Cores that stop and start again under traffic."""

from __future__ import annotations

import asyncio

import pytest

from postroad.cells import CellDomain
from tests.support.cells.nodes import Domains, Gate, Inbox, cut, quick
from tests.support.deadlines import DEADLINE_S, eventually


class Traffic:
    """Calls from one satellite to the other, several at a time, until it is told to end."""

    def __init__(self, domain: CellDomain, names: list[str], timeout_s: float = DEADLINE_S) -> None:
        self._domain = domain
        self._timeout_s = timeout_s
        self._names = names
        self.done = 0
        self.errors: list[BaseException] = []
        self._is_over = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name in self._names:
                group.create_task(self._call(name))

    async def _call(self, name: str) -> None:
        while not self._is_over:
            try:
                payload = b"%d" % self.done
                reply = await self._domain.call(name, payload, timeout=self._timeout_s)
                assert reply == payload
                self.done += 1
            except Exception as error:
                self.errors.append(error)

    async def more(self, count: int) -> None:
        """Wait until so many calls more have ended."""
        target = self.done + count
        await eventually(lambda: self.done >= target)

    def end(self) -> None:
        self._is_over = True


@pytest.mark.slow
async def test_orderly_restart_of_each_core_under_load_fails_no_call() -> None:
    async with Domains(2, 2) as domains:
        cells = [f"cell-{n}" for n in range(8)]
        for name in cells:
            domains["S2"].add_function(name, Inbox(), consume=[f"queue-{name}"])
        await domains.settled()
        names = [f"{cell}@S2" for cell in cells] + [f"queue-{cell}" for cell in cells]
        traffic = Traffic(domains["S1"], names)
        running = asyncio.ensure_future(traffic.run())
        await traffic.more(200)
        for core in ("C1", "C2"):
            await domains[core].stop()
            await traffic.more(200)
            await domains.start(core)
            await domains.connected()
            await traffic.more(200)
        traffic.end()
        await running

        assert traffic.errors == []
        assert traffic.done >= 1_000


async def test_broken_tunnels_under_load_fail_calls_only_by_timeout() -> None:
    """Calls whose message was on the broken tunnel time out; all others go on at once."""
    async with Domains(2, 2) as domains:
        domains["S2"].add_function("echo", Inbox())
        traffic = Traffic(domains["S1"], ["echo@S2"] * 4, timeout_s=1.0)
        running = asyncio.ensure_future(traffic.run())
        await traffic.more(100)
        for _ in range(5):
            for name in ("S1", "S2"):
                if "C1" in domains[name].links.by_domain:
                    await cut(domains[name], "C1")
            await traffic.more(100)
        traffic.end()
        await running
        assert all(isinstance(error, TimeoutError) for error in traffic.errors)


def defaults_of(domain: CellDomain) -> set[str]:
    """The cores through which a satellite sends."""
    return {route.target.domain for route in domain.table.defaults()}


async def test_satellites_leave_a_core_before_its_tunnels_close() -> None:
    async with Domains(2, 2) as domains:
        gate = domains.add("C1", "slow", Gate())
        call = asyncio.ensure_future(domains["S1"].call("slow@C1"))
        await eventually(lambda: gate.begun)
        stop = asyncio.ensure_future(domains["C1"].stop(5.0))

        satellites = domains["S1"], domains["S2"]
        await eventually(lambda: all(defaults_of(domain) == {"C2"} for domain in satellites))
        # The tunnels are still there, for what was begun.
        assert "C1" in domains["S1"].links.by_domain
        assert not stop.done()
        gate.open()
        assert await call == b""
        await stop
        await eventually(lambda: "C1" not in domains["S1"].links.by_domain)


async def test_a_reply_does_not_go_through_a_core_that_has_begun_to_stop() -> None:
    async with Domains(2, 2) as domains:
        gate = Gate()
        gate.open()
        domains["S2"].add_function("cell", gate, concurrency=2)
        links = domains["S2"].links.by_domain
        for _ in range(2):
            # The second request is handled on the fast path.
            await domains["S1"].call("cell@S2", b"x")
        core = next(name for name, link in links.items() if link.statistics().sent)
        gate.close()
        call = asyncio.ensure_future(domains["S1"].call("cell@S2", b"y"))
        await eventually(lambda: gate.begun[2:])
        # Its tunnels stay open as long as a cell of it is busy.
        busy = Gate()
        domains[core].add_function("busy", busy)
        domains[core].send_nowait("busy")
        stop = asyncio.ensure_future(domains[core].stop(5.0))
        await eventually(lambda: core not in defaults_of(domains["S2"]))
        sent = links[core].statistics().sent
        gate.open()
        assert await call == b"y"
        assert links[core].statistics().sent == sent
        busy.open()
        await stop


async def test_everything_a_domain_offered_is_withdrawn_before_it_closes() -> None:
    async with Domains(1, 2) as domains:
        gate, inbox = Gate(), Inbox()
        domains["S1"].add_function("worker", gate, consume=["work"])
        domains["S2"].add_function("worker", inbox, consume=["work"])
        await domains.settled()
        core = domains["C1"]
        await core.send("worker@S1", b"begun")
        await eventually(lambda: gate.begun)
        stop = asyncio.ensure_future(domains["S1"].stop(5.0))
        await eventually(
            lambda: [route.target.domain for route in core.table.queues("work")] == ["S2"]
        )
        for n in range(20):
            assert await core.call("work", b"%d" % n) == b"%d" % n
        assert not stop.done()
        gate.open()
        await stop
        assert gate.finished == [b"begun"]


async def test_a_stopped_core_that_comes_back_is_used_again() -> None:
    async with Domains(1, 2) as domains:
        domains["S2"].add_function("echo", Inbox(), consume=["work"])
        for _ in range(2):
            await domains["C1"].stop()
            await domains.start("C1")
            for name in ("echo@S2", "work"):
                assert await domains["S1"].call(name, b"x", timeout=10) == b"x"


async def test_stop_of_a_domain_does_not_wait_for_a_peer_that_is_gone() -> None:
    async with Domains(2, 1, config=quick(stop_grace_s=10 * DEADLINE_S)) as domains:
        await domains["C2"].stop()
        await domains.services["C2"].stop()
        async with asyncio.timeout(DEADLINE_S):
            await domains["S1"].stop()
            await domains["C1"].stop()
