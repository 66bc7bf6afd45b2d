"""Cells that drain and domains that stop while others go on sending: nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.cells import CellDomain, CellMessage, NoRouteError
from postroad.cells.delivery.domain_links import MESSAGE, DomainLink
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementUpdate,
    RouteAdvertisement,
    decode_routing_update,
)
from tests.support.cells.nodes import Domains, ForgedDomain, Inbox, forged_domain, link_of
from tests.support.deadlines import eventually

QUEUE = "orders"


class Stream:
    """Sends numbered messages to a queue until it is ended."""

    def __init__(self, domain: CellDomain) -> None:
        self._domain = domain
        self._task = asyncio.ensure_future(self._run())
        self.sent: list[bytes] = []

    async def _run(self) -> None:
        while True:
            for _ in range(20):
                payload = b"%d" % len(self.sent)
                await self._domain.send(QUEUE, payload)
                self.sent.append(payload)
            await asyncio.sleep(0)

    async def pass_by(self, count: int) -> None:
        """Wait until so many more are sent."""
        so_far = len(self.sent)
        await eventually(lambda: self._task.done() or len(self.sent) >= so_far + count)
        assert not self._task.done()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


async def ended_without_loss(stream: Stream, handled: list[bytes]) -> None:
    """Every message is handled, and once."""
    await stream.end()
    await eventually(lambda: len(handled) >= len(stream.sent))
    assert sorted(handled, key=int) == stream.sent


@asynccontextmanager
async def two_consumers() -> AsyncIterator[tuple[Domains, list[bytes]]]:
    """A queue with consumers in S2 and S3 below one core, and what they handled."""
    async with Domains(1, 3) as domains:
        handled: list[bytes] = []

        def work(message: CellMessage) -> None:
            handled.append(message.payload)

        for name in ("S2", "S3"):
            domains[name].add_function("worker", work, consume=[QUEUE])
        await domains.settled()
        yield domains, handled


async def test_a_cell_drains_again_and_again_under_a_stream_of_messages() -> None:
    async with two_consumers() as (domains, handled):
        stream, draining = Stream(domains["S1"]), domains["S2"]
        for _ in range(6):
            await stream.pass_by(100)
            assert await draining.drain_cell("worker")
            await stream.pass_by(100)
            draining.consume("worker", QUEUE)
            assert await draining.wait_routes_acknowledged()
        await ended_without_loss(stream, handled)
        assert draining.statistics().undelivered == 0


async def test_a_satellite_stops_under_a_stream_of_messages() -> None:
    async with two_consumers() as (domains, handled):
        stream = Stream(domains["S1"])
        await stream.pass_by(100)
        await domains["S2"].stop()
        await stream.pass_by(100)
        await ended_without_loss(stream, handled)


async def test_draining_cell_accepts_messages_until_acknowledged() -> None:
    async with Domains(1, 0) as domains, forged_domain(domains["C1"]) as forged:
        core, inbox = domains["C1"], Inbox()
        core.add_function("worker", inbox, consume=[QUEUE])
        await eventually(
            lambda: any(advertised_queues(update) == (QUEUE,) for update in forged.updates)
        )
        await forged.acknowledge(core)
        drain = asyncio.ensure_future(core.drain_cell("worker", 5.0))
        await eventually(lambda: advertised_queues(forged.updates[-1]) == ())
        reply = await forged.answer_to(forged.send(QUEUE, b"not told yet"))
        assert reply.payload == b"not told yet"
        assert not drain.done()
        await forged.acknowledge(core)
        assert await drain is True
        failure = await forged.failure_of(forged.send(QUEUE, b"told"))
        assert failure.code == NoRouteError.code
        assert inbox.payloads == [b"not told yet"]


def advertised_queues(update: object) -> tuple[str, ...] | None:
    """The queues a snapshot tells of."""
    return update.advertisement.queues if isinstance(update, AdvertisementUpdate) else None


# What waits for a tunnel whose other end withdraws something.


async def advertisement(
    forged: ForgedDomain, core: CellDomain, number: int, what: RouteAdvertisement
) -> None:
    """Have a core hear of an offer, and change its routes accordingly."""
    forged.advertise(number, what)
    await eventually(lambda: core.propagator.learner.ack_for("X").number == number)
    await asyncio.sleep(0)


def held(core: CellDomain) -> DomainLink:
    """The tunnel to X, which takes nothing for a while, as under load."""
    link = link_of(core, "X")
    link.tunnel.can_send = False
    return link


def release(link: DomainLink) -> None:
    link.tunnel.can_send = True
    link.on_writable()


def heard(forged: ForgedDomain, number: int) -> list[str]:
    """The messages a forged domain got and one acknowledgement, in their order."""
    log = []
    for request in forged.requests:
        if request.subject == MESSAGE:
            log.append("message")
        elif (
            isinstance(ack := decode_routing_update(request.payload), AdvertisementAck)
            and ack.number == number
        ):
            log.append("acknowledged")
    return log


async def test_withdrawal_is_acknowledged_after_queued_messages() -> None:
    async with Domains(1, 0) as domains, forged_domain(domains["C1"]) as forged:
        core = domains["C1"]
        await advertisement(forged, core, 1, RouteAdvertisement.of([QUEUE], ["news"]))
        link = held(core)
        core.send_nowait(QUEUE, b"nobody else takes it")
        core.publish("news", b"a copy for its subscribers")
        core.send_nowait("cell@X", b"for it alone")
        assert link.statistics().waiting == 3
        await advertisement(forged, core, 2, RouteAdvertisement())
        assert not core.table.queues(QUEUE)
        assert not link.is_flushed
        release(link)
        await eventually(lambda: "acknowledged" in heard(forged, 2))
        assert heard(forged, 2) == ["message"] * 3 + ["acknowledged"]
        assert [envelope.payload for envelope in forged.envelopes] == [
            b"nobody else takes it",
            b"a copy for its subscribers",
            b"for it alone",
        ]
        assert link.is_flushed


async def test_addition_is_acknowledged_before_queued_messages() -> None:
    async with Domains(1, 0) as domains, forged_domain(domains["C1"]) as forged:
        core = domains["C1"]
        await advertisement(forged, core, 1, RouteAdvertisement.of([QUEUE]))
        link = held(core)
        core.send_nowait("cell@X", b"for it alone")
        await advertisement(forged, core, 2, RouteAdvertisement.of([QUEUE, "more"]))
        release(link)
        await eventually(lambda: "message" in heard(forged, 2))
        assert heard(forged, 2) == ["acknowledged", "message"]


async def test_messages_with_other_consumers_are_rerouted() -> None:
    """The tunnel takes nothing all the while."""
    async with Domains(1, 1) as domains, forged_domain(domains["C1"]) as forged:
        core, inbox = domains["C1"], Inbox()
        await advertisement(forged, core, 1, RouteAdvertisement.of([QUEUE]))
        link = held(core)
        for n in range(5):
            core.send_nowait(QUEUE, b"%d" % n)
        domains["S1"].add_function("worker", inbox, consume=[QUEUE])
        await domains["S1"].wait_routes_acknowledged()
        assert link.statistics().waiting == 5
        await advertisement(forged, core, 2, RouteAdvertisement())
        await eventually(lambda: len(inbox.messages) == 5)
        assert inbox.payloads == [b"%d" % n for n in range(5)]
        assert link.statistics().waiting == 0
        release(link)
        await eventually(lambda: heard(forged, 2))
        assert heard(forged, 2) == ["acknowledged"]


async def test_messages_without_other_route_keep_waiting() -> None:
    """Publications and replies, of whose loss nobody would be told."""
    async with Domains(1, 2) as domains:
        satellite, core, inbox = domains["S1"], domains["C1"], Inbox()
        domains["S2"].add_function("listener", inbox, subscribe=["news"])
        core.add_function("worker", Inbox(), consume=["work"])
        satellite.add_function("echo", Inbox())
        await domains.settled()
        link = link_of(satellite, "C1")
        link.tunnel.can_send = False
        for number in range(5):
            satellite.publish("news", b"%d" % number)
        call = asyncio.ensure_future(domains["S2"].call("echo@S1", b"x", timeout=10))
        await eventually(lambda: link.statistics().waiting == 6)

        core.stop_consuming("worker", "work")
        await eventually(lambda: not satellite.table.queues("work"))
        assert link.statistics().waiting == 6
        link.tunnel.can_send = True
        link.on_writable()
        assert await call == b"x"
        await eventually(lambda: len(inbox.messages) == 5)
