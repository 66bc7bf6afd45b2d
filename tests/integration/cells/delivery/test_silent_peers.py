"""Peers that are frozen, or do not read: they are noticed, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import signal

import msgspec
import pytest

from postroad.cells import CellBusyError, NoRouteError
from postroad.cells.delivery.domain_links import MESSAGE, ROUTES
from postroad.cells.routing.advertisements import AdvertisementUpdate
from postroad.core.errors import ReplyTimeoutError
from postroad.core.limits import KIB, MIB
from tests.support.cells.child_processes import child_domain
from tests.support.cells.nodes import LIMITS, Domains, Inbox, forged_domain, link_of, quick
from tests.support.deadlines import eventually
from tests.support.net.peers import resident_bytes

# Heartbeats long enough not to interfere, since only one direction stands still.
PATIENT = msgspec.structs.replace(
    LIMITS, heartbeat_interval_s=10.0, heartbeat_timeout_s=40.0, write_buffer_bytes_max=64 * KIB
)

WATCHFUL = msgspec.structs.replace(LIMITS, heartbeat_timeout_s=1.0)


async def test_frozen_process_is_detected_and_its_routes_withdrawn() -> None:
    async with Domains(1, 1, limits=WATCHFUL) as domains:
        core, address = domains["C1"], domains.services["C1"].address
        async with child_domain("F1", "C1", address) as process:
            assert await domains["S1"].call("work", b"x", timeout=10) == b"x"
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(ReplyTimeoutError):
                await domains["S1"].call("echo@F1", b"x", timeout=0.2)
            await eventually(lambda: "F1" not in core.links.by_domain)
            await eventually(lambda: not core.table.queues("work"))
            assert not core.table.domains("F1")
            assert "tunnel-F1" not in core.cells
            for name in ("work", "echo@F1"):
                with pytest.raises(NoRouteError):
                    await domains["S1"].call(name, b"x", wait=False)
            # A call that waits finds it again once it goes on.
            call = asyncio.ensure_future(domains["S1"].call("work", b"again", timeout=10))
            process.send_signal(signal.SIGCONT)
            assert await call == b"again"


async def test_killed_process_is_detected_at_once() -> None:
    async with Domains(1, 1) as domains:
        core, address = domains["C1"], domains.services["C1"].address
        async with child_domain("F1", "C1", address) as process:
            assert await domains["S1"].call("work", b"x", timeout=10) == b"x"
            process.kill()
            await eventually(
                lambda: not core.table.queues("work"), timeout=LIMITS.heartbeat_timeout_s / 2
            )
            assert "F1" not in core.links.by_domain


async def test_a_slow_reader_holds_little_memory_and_nobody_else() -> None:
    config = quick(link_messages_max=2_000, link_bytes_max=4 * MIB)
    async with Domains(1, 3, config=config, limits=PATIENT) as domains:
        core = domains["C1"]
        inbox = Inbox()
        for name in ("S1", "S2"):
            domains[name].add_function("sink", inbox)
        transport = link_of(domains["S1"], "C1").tunnel.transport
        assert transport is not None
        transport.pause_reading()
        link, before = link_of(core, "S1"), resident_bytes()
        refused = 0
        payload = bytes(10 * KIB)
        for _ in range(10_000):
            try:
                core.send_nowait("sink@S1", payload)
            except CellBusyError:
                refused += 1
            if refused % 100 == 0:
                await asyncio.sleep(0)
        now = link.statistics()
        assert now.refused == refused > 5_000
        # One sender gets half of the place.
        assert now.waiting_bytes <= 2 * MIB + len(payload)
        assert resident_bytes() - before < 50 * MIB
        with pytest.raises(CellBusyError):
            await core.call("sink@S1", payload, timeout=5)
        # Others have their share of the queue, and other tunnels know nothing of it.
        await domains["S3"].send("sink@S1", b"from S3")
        await eventually(lambda: link.statistics().waiting == now.waiting + 1)
        assert await domains["S3"].call("sink@S2", b"x", timeout=5) == b"x"

        received = len(inbox.messages)
        transport.resume_reading()
        await eventually(lambda: b"from S3" in inbox.payloads)
        assert len(inbox.messages) == received + 10_000 - refused + 1
        assert link.statistics().waiting == 0


async def test_routing_updates_overtake_queued_messages() -> None:
    async with (
        Domains(1, 1, limits=PATIENT) as domains,
        forged_domain(domains["C1"], limits=PATIENT) as forged,
    ):
        core, link = domains["C1"], link_of(domains["C1"], "X")
        await forged.acknowledge(core)
        transport = forged.tunnel.transport
        assert transport is not None
        transport.pause_reading()
        while not link.statistics().waiting:
            core.send_nowait("sink@X", bytes(10 * KIB))
            await asyncio.sleep(0)
        for _ in range(300):
            core.send_nowait("sink@X", b"last")
        core.add_function("new", Inbox(), consume=["new"])
        # Whoever reads has heard of it.
        await eventually(lambda: domains["S1"].table.queues("new"))
        assert link.statistics().waiting > 300
        transport.resume_reading()
        await eventually(
            lambda: sum(envelope.payload == b"last" for envelope in forged.envelopes) == 300
        )

        subjects = [request.subject for request in forged.requests]
        news = len(subjects) - subjects[::-1].index(ROUTES) - 1
        assert isinstance(forged.updates[-1], AdvertisementUpdate)
        assert forged.updates[-1].advertisement.queues == ("new",)
        assert subjects[news:].count(MESSAGE) >= 300


async def test_a_peer_that_never_reads_is_cut_off() -> None:
    impatient = msgspec.structs.replace(PATIENT, frame_timeout_s=0.5)
    async with Domains(1, 2, limits=impatient) as domains:
        core = domains["C1"]
        domains["S1"].add_function("sink", Inbox())
        await domains["S1"].dialer.close()
        transport = link_of(domains["S1"], "C1").tunnel.transport
        assert transport is not None
        transport.pause_reading()
        link = link_of(core, "S1")
        while not link.statistics().waiting:
            core.send_nowait("sink@S1", bytes(100 * KIB))
            await asyncio.sleep(0)
        call = asyncio.ensure_future(core.call("sink@S1", b"", wait=False, timeout=8))
        await eventually(lambda: "S1" not in core.links.by_domain)
        with pytest.raises(NoRouteError):
            await call
        assert not core.table.domains("S1")
        transport.resume_reading()
