"""Who gets room in a tunnel or a mailbox that somebody else floods."""

from __future__ import annotations

import asyncio

from tests.support.cells.nodes import Domains, Gate, Inbox, forged_domain, link_of, quick
from tests.support.deadlines import eventually


async def test_a_satellite_that_floods_a_cell_leaves_room_for_the_others() -> None:
    async with Domains(1, 3, config=quick(mailbox_messages_max=40)) as domains:
        gate = Gate()
        domains["S2"].add_function("slow", gate)
        mailbox = domains["S2"]._runner("slow").mailbox
        for _ in range(100):
            await domains["S1"].send("slow@S2", b"flood")
        await eventually(lambda: domains["S2"].statistics().refused == 79)
        assert len(mailbox) == 20
        calls = [
            asyncio.ensure_future(domains[name].call("slow@S2", name.encode()))
            for name in ("S3", "C1")
        ]
        await eventually(lambda: len(mailbox) == 22)
        gate.open()
        assert await asyncio.gather(*calls) == [b"S3", b"C1"]


async def test_replies_need_a_place_in_a_tunnel_but_no_share() -> None:
    """The work for them is done: half of the places would be five."""
    async with Domains(1, 2, config=quick(link_messages_max=10)) as domains:
        inbox = Inbox()
        domains["S2"].add_function("echo", inbox)
        link = link_of(domains["C1"], "S1")
        await domains["S1"].call("echo@S2", b"so that the way is known")
        link.tunnel.can_send = False
        payloads = [b"%d" % n for n in range(9)]
        calls = [asyncio.ensure_future(domains["S1"].call("echo@S2", it)) for it in payloads]
        await eventually(
            lambda: link.statistics().waiting + domains["C1"].statistics().refused == 9
        )
        assert domains["C1"].statistics().refused == 0
        link.tunnel.can_send = True
        link.writable()
        assert await asyncio.gather(*calls) == payloads


async def test_messages_without_a_payload_do_not_wait_without_bounds() -> None:
    bytes_max = 100_000
    async with (
        Domains(1, 1, config=quick(link_bytes_max=bytes_max)) as domains,
        forged_domain(domains["C1"]) as forged,
    ):
        inbox = Inbox()
        domains["S1"].add_function("echo", inbox)
        link = link_of(domains["C1"], "S1")
        link.tunnel.can_send = False
        headers = {"a": "x" * 4_000, "b": "y" * 4_000}
        for _ in range(50):
            forged.send("echo@S1", headers=headers, wants_reply=False)
        await eventually(lambda: link.statistics().waiting + link.statistics().refused == 50)
        told = link.statistics()
        assert 8_000 * told.waiting < told.waiting_bytes <= bytes_max
        link.tunnel.can_send = True
        link.writable()
        await eventually(lambda: len(inbox.messages) == told.waiting)
