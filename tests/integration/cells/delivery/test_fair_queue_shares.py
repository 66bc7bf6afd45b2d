"""Who gets room in a tunnel or a mailbox that somebody else floods."""

from __future__ import annotations

import asyncio

import pytest

from postroad.cells import CellPath, Role
from tests.support.cells.nodes import Domains, Gate, Inbox, forged_domain, link_of, quick
from tests.support.deadlines import eventually


async def test_a_satellite_that_floods_a_cell_leaves_room_for_the_others() -> None:
    async with Domains(1, 3, config=quick(mailbox_messages_max=40)) as domains:
        gate = domains.add("S2", "slow", Gate())
        mailbox = domains["S2"]._runner("slow").mailbox
        for _ in range(100):
            await domains["S1"].send("slow@S2", b"flood")
        await eventually(lambda: domains["S2"].statistics().refused == 85)
        assert len(mailbox) == 14
        calls = [
            asyncio.ensure_future(domains[name].call("slow@S2", name.encode()))
            for name in ("S3", "C1")
        ]
        await eventually(lambda: len(mailbox) == 16)
        gate.open()
        assert await asyncio.gather(*calls) == [b"S3", b"C1"]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("room", [{"mailbox_messages_max": 100}, {"mailbox_bytes_max": 100_000}])
async def test_peer_inventing_domains_has_one_share(role: Role, room: dict[str, int]) -> None:
    async with Domains(1, 1, config=quick(**room)) as domains:
        gate = domains.add("C1", "slow", Gate())
        runner = domains["C1"]._runner("slow")
        async with forged_domain(domains["C1"], role=role) as forged:
            for number in range(500):
                source = f"p@D{number}:*@D{number}:*@X" if role is Role.CORE else f"p{number}@X:*@X"
                forged.send("slow@C1", b"flood", source=CellPath.parse(source))
            count = domains["C1"].statistics
            await eventually(lambda: count().refused + len(runner.mailbox) + 1 == 500)
            held = len(runner.mailbox)
            assert held <= 50 or runner.mailbox.bytes <= 50_000
            calls = [
                asyncio.ensure_future(domains["S1"].call("slow@C1", b"%d" % n)) for n in range(5)
            ]
            await eventually(
                lambda: len(runner.mailbox) == held + 5 or any(call.done() for call in calls)
            )
            gate.open()
            assert await asyncio.gather(*calls) == [b"%d" % n for n in range(5)]


async def test_tunnel_flooded_with_invented_domains_accepts_others() -> None:
    config = quick(link_messages_max=100)
    async with (
        Domains(1, 2, config=config) as domains,
        forged_domain(domains["C1"], role=Role.CORE) as forged,
    ):
        domains.add("S2", "echo", Inbox())
        link = link_of(domains["C1"], "S2")
        link.tunnel.can_send = False
        for number in range(500):
            source = CellPath.parse(f"p@D{number}:*@D{number}:*@X")
            forged.send("echo@S2", b"flood", source=source, wants_reply=False)
        await eventually(lambda: link.statistics().waiting + link.statistics().refused == 500)
        assert link.statistics().waiting <= 50
        call = asyncio.ensure_future(domains["S1"].call("echo@S2", b"honest"))
        await eventually(lambda: link.statistics().waiting == 51 or call.done())
        link.tunnel.can_send = True
        link.on_writable()
        assert await call == b"honest"


async def test_replies_need_capacity_in_a_tunnel_but_no_share() -> None:
    """The work for them is done: half of the places would be five."""
    async with Domains(1, 2, config=quick(link_messages_max=10)) as domains:
        domains.add("S2", "echo", Inbox())
        link = link_of(domains["C1"], "S1")
        await domains["S1"].call("echo@S2", b"so that the way is known")
        link.tunnel.can_send = False
        payloads = [b"%d" % n for n in range(9)]
        calls = [
            asyncio.ensure_future(domains["S1"].call("echo@S2", payload)) for payload in payloads
        ]
        await eventually(
            lambda: link.statistics().waiting + domains["C1"].statistics().refused == 9
        )
        assert domains["C1"].statistics().refused == 0
        link.tunnel.can_send = True
        link.on_writable()
        assert await asyncio.gather(*calls) == payloads


async def test_queued_messages_without_payload_are_bounded() -> None:
    bytes_max = 100_000
    async with (
        Domains(1, 1, config=quick(link_bytes_max=bytes_max)) as domains,
        forged_domain(domains["C1"]) as forged,
    ):
        inbox = domains.add("S1", "echo", Inbox())
        link = link_of(domains["C1"], "S1")
        link.tunnel.can_send = False
        headers = {"a": "x" * 4_000, "b": "y" * 4_000}
        for _ in range(50):
            forged.send("echo@S1", headers=headers, wants_reply=False)
        await eventually(lambda: link.statistics().waiting + link.statistics().refused == 50)
        statistics = link.statistics()
        assert 8_000 * statistics.waiting < statistics.waiting_bytes <= bytes_max
        link.tunnel.can_send = True
        link.on_writable()
        await eventually(lambda: len(inbox.messages) == statistics.waiting)
