"""Not everybody is connected to everybody: messages find another way."""

from __future__ import annotations

import asyncio

import pytest

from postroad.cells import CellAddress, CellBusyError, NoRouteError
from tests.support.cells.nodes import Domains, Gate, Inbox, cut, link_of, quick
from tests.support.deadlines import DEADLINE_S, eventually

COUNT = 20


async def check_all_ways(
    domains: Domains, one: str, other: str, *forms: str, timeout: float = 5
) -> None:
    """Whatever is sent from either to the other arrives, and is answered."""
    for here, there in ((one, other), (other, one)):
        for n in range(COUNT):
            # Other names each time, since names decide which core is asked, also for the reply.
            sender = CellAddress(f"sender-{n}", here)
            for form in forms:
                name = form.format(n=n, there=there)
                payload = f"{here} {n}".encode()
                reply = await domains[here].call(name, payload, sender=sender, timeout=timeout)
                assert reply == payload


CELL = "cell-{n}@{there}"
QUEUE = "work-{there}-{n}"


def add_cells(domains: Domains, name: str) -> list[Inbox]:
    inboxes = [Inbox() for _ in range(COUNT)]
    for n, inbox in enumerate(inboxes):
        domains[name].add_function(f"cell-{n}", inbox, consume=[f"work-{name}-{n}"])
    return inboxes


@pytest.mark.parametrize(
    ("reach", "forms", "timeout"),
    [
        ({"S1": ["C1"]}, [CELL, QUEUE], 5),
        # Cores know who has a tunnel to a domain they have none to.
        ({"S1": ["C1"], "S2": ["C2"]}, [CELL], 5),
        # Requests and replies that meet the wrong core try the other.
        ({"S1": ["C1"], "C1": [], "C2": []}, [CELL, QUEUE], 1),
    ],
    ids=["one core only", "no core in common", "cores without a tunnel"],
)
async def test_satellites_that_reach_some_cores_find_a_way(
    reach: dict[str, list[str]], forms: list[str], timeout: float
) -> None:
    async with Domains(2, 2, reach=reach) as domains:
        assert set(domains["S1"].links.by_domain) == {"C1"}
        assert ("C2" in domains["C1"].links.by_domain) is ("C1" not in reach)
        add_cells(domains, "S1")
        add_cells(domains, "S2")
        await domains.settled()
        await check_all_ways(domains, "S1", "S2", *forms, timeout=timeout)


async def test_one_way_messages_find_a_way() -> None:
    async with Domains(2, 2, reach={"S1": ["C1"], "C1": [], "C2": []}) as domains:
        inboxes = add_cells(domains, "S1")
        await domains.settled()
        for n in range(COUNT):
            await domains["S2"].send(f"cell-{n}@S1", b"cell")
            await domains["S2"].send(f"work-S1-{n}", b"queue")
        await eventually(lambda: sum(len(inbox.messages) for inbox in inboxes) == 2 * COUNT)
        assert all(sorted(inbox.payloads) == [b"cell", b"queue"] for inbox in inboxes)
        # About half of the names lead to C2 first.
        assert domains["S2"].statistics().resent > 0


async def test_broken_tunnel_between_cores_is_bypassed() -> None:
    async with Domains(3, 2, reach={"S1": ["C1"], "S2": ["C2", "C3"]}) as domains:
        add_cells(domains, "S1")
        add_cells(domains, "S2")
        await domains.settled()
        # Of two cores it is the later one that dials: this one no more.
        await domains["C2"].dialer.close()
        await cut(domains["C1"], "C2")
        await eventually(lambda: "C1" not in domains["C2"].links.by_domain)
        await check_all_ways(domains, "S1", "S2", CELL)


async def test_messages_queued_for_a_broken_tunnel_are_rerouted() -> None:
    async with Domains(2, 2) as domains:
        inbox = domains.add("S2", "sink", Inbox())
        await domains.settled()
        sender = domains["S1"]
        await sender.dialer.close()
        await sender.call("sink@S2", b"which way")
        [used] = [core for core in ("C1", "C2") if link_of(sender, core).statistics().sent]
        link = link_of(sender, used)
        # The tunnel takes no more, as if its socket were full.
        link.tunnel.can_send = False
        payloads = [b"%d" % n for n in range(100)]
        for payload in payloads:
            await sender.send("sink@S2", payload)
        call = asyncio.ensure_future(sender.call("sink@S2", b"call", timeout=5))
        await asyncio.sleep(0)
        assert link.statistics().waiting == 101
        await cut(sender, used)

        assert await call == b"call"
        assert inbox.payloads == [b"which way", *payloads, b"call"]
        assert sender.statistics().resent == 101


async def test_messages_queued_for_the_only_tunnel_fail_when_it_breaks() -> None:
    async with Domains(1, 2) as domains:
        gate = domains.add("S2", "slow", Gate())
        sender = domains["S1"]
        await sender.dialer.close()
        link_of(sender, "C1").tunnel.can_send = False
        call = asyncio.ensure_future(sender.call("slow@S2", b"x", wait=False))
        await asyncio.sleep(0)
        await cut(sender, "C1")
        with pytest.raises(NoRouteError):
            await call
        assert not gate.begun


async def test_a_call_outlives_the_only_tunnel() -> None:
    async with Domains(1, 2) as domains:
        domains["S2"].add_function("echo", Inbox())
        link_of(domains["S1"], "C1").tunnel.can_send = False
        call = asyncio.ensure_future(domains["S1"].call("echo@S2", b"x", timeout=DEADLINE_S))
        await asyncio.sleep(0)
        await cut(domains["S1"], "C1")
        assert await call == b"x"


async def test_when_a_tunnel_is_full_the_next_one_takes_more() -> None:
    async with Domains(2, 2, config=quick(link_messages_max=10)) as domains:
        inbox = domains.add("S2", "sink", Inbox())
        sender = domains["S1"]
        await sender.call("sink@S2", b"which way")
        [used] = [core for core in ("C1", "C2") if link_of(sender, core).statistics().sent]
        full = link_of(sender, used)
        full.tunnel.can_send = False
        for n in range(30):
            await sender.send("sink@S2", b"%d" % n)
        assert full.statistics().waiting == 5
        await eventually(lambda: len(inbox.messages) == 26)
        for link in sender.links.by_domain.values():
            link.tunnel.can_send = False
        with pytest.raises(CellBusyError):
            for _ in range(30):
                await sender.send("sink@S2", b"never")
        taken = sum(link.statistics().waiting for link in sender.links.by_domain.values())
        for link in sender.links.by_domain.values():
            link.tunnel.can_send = True
            link.on_writable()
        # What comes after it arrives when all of it has.
        assert await sender.call("sink@S2", b"last") == b"last"
        await eventually(lambda: len(inbox.messages) >= 27 + taken)
        assert len(inbox.messages) == 27 + taken
