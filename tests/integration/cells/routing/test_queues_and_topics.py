"""Queues, topics, zones, names and drains over several domains."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from postroad import cells
from postroad.core.errors import ConfigError
from tests.support.cells.nodes import Domains, Gate, Inbox, names_of
from tests.support.deadlines import eventually


async def test_each_message_of_a_queue_is_for_one_consumer() -> None:
    async with Domains(2, 4) as domains:
        inboxes = [Inbox() for _ in range(4)]
        domains["S1"].add_function("one", inboxes[0], consume=["work"])
        domains["S1"].add_function("two", inboxes[1], consume=["work"])
        domains["S2"].add_function("one", inboxes[2], consume=["work"])
        domains["C1"].add_function("one", inboxes[3], consume=["work"])
        await domains.settled()
        payloads = [b"%d" % n for n in range(200)]
        for n, payload in enumerate(payloads):
            await domains[f"S{n % 4 + 1}"].send("work", payload)
        await eventually(lambda: sum(len(inbox.messages) for inbox in inboxes) >= 200)
        # What came twice would have come before an answer by the same ways.
        for name in domains.by_name:
            await domains[name].call("one@C1", b"last")
            await domains[name].call("one@S1", b"last")
            await domains[name].call("one@S2", b"last")
        for inbox in inboxes:
            inbox.messages = [message for message in inbox.messages if message.payload != b"last"]
        everything = [message for inbox in inboxes for message in inbox.messages]
        assert Counter(message.payload for message in everything) == Counter(payloads)
        assert names_of(everything) == ["work"] * 200
        assert all(len(inbox.messages) > 10 for inbox in inboxes)


async def test_each_publication_reaches_every_subscriber_once() -> None:
    async with Domains(2, 3) as domains:
        inboxes = {name: Inbox() for name in domains.by_name}
        for name, inbox in inboxes.items():
            domains[name].add_function("listener", inbox, subscribe=["news"])
        domains["S1"].add_function("second", (second := Inbox()), subscribe=["news"])
        await domains.settled()
        for name in domains.by_name:
            domains[name].publish("news", name.encode())
        everything = sorted(name.encode() for name in domains.by_name)
        listening = [*inboxes.values(), second]
        await eventually(lambda: all(len(inbox.messages) >= len(everything) for inbox in listening))
        # What came twice would have come before a second publication of everybody.
        for name in domains.by_name:
            domains[name].publish("news", b"again")
        await eventually(
            lambda: all(inbox.payloads.count(b"again") == len(everything) for inbox in listening)
        )
        for inbox in listening:
            assert (
                sorted(payload for payload in inbox.payloads if payload != b"again") == everything
            )
            assert set(names_of(inbox.messages)) == {"news"}


async def test_publication_without_subscriber_is_no_error() -> None:
    async with Domains(1, 1) as domains:
        for name in ("S1", "C1"):
            domains[name].publish("nothing", b"")
        domains["C1"].add_function("echo", Inbox())
        assert await domains["S1"].call("echo", b"x") == b"x"


async def test_cell_has_precedence_over_queue_and_topic_of_its_name() -> None:
    async with Domains(1, 2) as domains:
        cell, consumer, subscriber = Inbox(), Inbox(), Inbox()
        domains["S1"].add_function("name", cell)
        domains["S2"].add_function("consumer", consumer, consume=["name"])
        domains["S2"].add_function("subscriber", subscriber, subscribe=["name"])
        await domains.settled()
        for _ in range(10):
            await domains["S1"].call("name", b"x")
        assert len(cell.messages) == 10
        assert not (consumer.messages or subscriber.messages)
        assert names_of(cell.messages) == [None] * 10
        # From elsewhere the name is the queue's.
        await domains["S2"].call("name", b"y")
        assert names_of(consumer.messages) == ["name"]


async def test_messages_to_one_cell_stay_in_order() -> None:
    async with Domains(2, 2) as domains:
        seen: list[int] = []

        async def slow(message: cells.CellMessage) -> None:
            await asyncio.sleep(0.0005 * (message.body % 3))
            seen.append(message.body)

        domains["S2"].add_function("slow", slow)
        for n in range(200):
            await domains["S1"].send("slow@S2", n)
        await eventually(lambda: len(seen) == 200)
        assert seen == list(range(200))


# Zones.


async def test_consumers_and_cores_of_the_own_zone_are_preferred() -> None:
    zones = {"C1": "east", "S1": "east", "S2": "east", "C2": "west", "S3": "west", "S4": "west"}
    async with Domains(2, 4, zones=zones) as domains:
        inboxes = {name: Inbox() for name in ("S2", "S4")}
        for name, inbox in inboxes.items():
            domains[name].add_function("worker", inbox, consume=["work"])
            for n in range(20):
                domains[name].add_function(f"cell-{n}", Inbox())
        await domains.settled()
        for _ in range(20):
            await domains["S1"].call("work", b"east")
            await domains["S3"].call("work", b"west")
        assert inboxes["S2"].payloads == [b"east"] * 20
        assert inboxes["S4"].payloads == [b"west"] * 20
        for n in range(20):
            await domains["S1"].call(f"cell-{n}@S4", b"")
        links = domains["S1"].links.by_domain
        assert links["C2"].statistics().sent == 0
        # When nobody of the own zone is left, the others do.
        await domains["S2"].remove_cell("worker")
        await domains.settled()
        assert await domains["S1"].call("work", b"far") == b"far"
        assert inboxes["S4"].payloads[-1] == b"far"


# Changes.


async def test_a_consumer_can_stop_and_begin_again() -> None:
    async with Domains(1, 3) as domains:
        inboxes = {name: Inbox() for name in ("S2", "S3")}
        for name, inbox in inboxes.items():
            domains[name].add_function("worker", inbox, consume=["work"])
        await domains.settled()
        domains["S2"].stop_consuming("worker", "work")
        assert await domains["S2"].wait_routes_acknowledged()
        for _ in range(20):
            await domains["S1"].call("work", b"x", wait=False)
        assert (len(inboxes["S2"].messages), len(inboxes["S3"].messages)) == (0, 20)
        domains["S2"].consume("worker", "work")
        domains["S3"].stop_consuming("worker", "work")
        await domains.settled()
        for _ in range(20):
            await domains["S1"].call("work", b"x", wait=False)
        assert (len(inboxes["S2"].messages), len(inboxes["S3"].messages)) == (20, 20)


async def test_a_subscriber_can_stop_and_begin_again() -> None:
    async with Domains(1, 2) as domains:
        inbox = domains.add("S2", "listener", Inbox())
        for n, change in enumerate((domains["S2"].subscribe, domains["S2"].unsubscribe) * 2):
            change("listener", "news")
            await domains.settled()
            domains["S1"].publish("news", b"%d" % n)
            await domains["S1"].call("listener@S2", b"after")
        await eventually(lambda: len(inbox.messages) == 6)
        assert [payload for payload in inbox.payloads if payload != b"after"] == [b"0", b"2"]


async def test_impossible_subscription_changes_are_refused() -> None:
    async with Domains(1, 1) as domains:
        domain = domains["S1"]
        domain.add_function("a", Inbox(), consume=["work"])
        with pytest.raises(cells.RouteRejectedError):
            domain.consume("a", "work")
        with pytest.raises(cells.RouteNotFoundError):
            domain.stop_consuming("a", "other")
        with pytest.raises(cells.CellNotFoundError):
            domain.consume("nobody", "work")
        with pytest.raises(cells.CellNotFoundError):
            await domain.remove_cell("nobody")
        with pytest.raises(cells.CellNotFoundError):
            await domain.drain_cell("nobody")
        with pytest.raises(ConfigError, match="cannot add cell 'a': domain S1 has one already"):
            domain.add_function("a", Inbox())
        with pytest.raises(cells.RouteRejectedError):
            domain.add_function("b", Inbox(), consume=["q", "q"])
        assert "b" not in domain.cells
        domain.add_function("b", Inbox())
        assert await domain.call("a", b"still there") == b"still there"


# Drains.


@pytest.mark.parametrize("name", ["worker", "work"])
async def test_a_drained_cell_gets_nothing_more_and_finishes(name: str) -> None:
    """Also if the cell has the name of its queue."""
    async with Domains(2, 3) as domains:
        gate, inbox = Gate(), Inbox()
        draining = domains["S2"]
        draining.add_function(name, gate, consume=["work"])
        await domains.settled()
        begun = [asyncio.ensure_future(domains["S1"].call("work", b"%d" % n)) for n in range(5)]
        await eventually(lambda: len(draining._runner(name).mailbox) == 4)
        domains["S3"].add_function("other", inbox, consume=["work"])
        await domains.settled()
        drain = asyncio.ensure_future(draining.drain_cell(name, 5.0))
        await eventually(lambda: name in draining.dispatcher.registry.draining)
        for domain in ("S1", "S2", "S3", "C1", "C2"):
            for _ in range(5):
                assert await domains[domain].call("work", b"later", wait=False) == b"later"
        assert not drain.done()
        gate.open()
        assert await drain is True
        assert [await call for call in begun] == [b"%d" % n for n in range(5)]
        assert gate.finished == [b"%d" % n for n in range(5)]
        assert inbox.payloads == [b"later"] * 25
        # Whoever knows it by its full address still reaches it.
        assert await domains["S1"].call(f"{name}@S2", b"direct") == b"direct"


async def test_drain_beyond_its_timeout_raises() -> None:
    async with Domains(1, 1) as domains:
        gate = domains.add("S1", "worker", Gate(), consume=["work"])
        await domains["S1"].send("worker", b"x")
        assert await domains["S1"].drain_cell("worker", 0.05) is False
        with pytest.raises(cells.NoRouteError):
            await domains["S1"].call("work", b"", wait=False)
        gate.open()
        assert await domains["S1"].drain_cell("worker", 5.0) is True


async def test_drained_cell_that_consumes_again_receives_messages() -> None:
    async with Domains(1, 2) as domains:
        domains["S2"].add_function("worker", Inbox(), consume=["work"])
        await domains.settled()
        assert await domains["S2"].drain_cell("worker")
        with pytest.raises(cells.NoRouteError):
            await domains["S1"].call("work", b"", wait=False)
        domains["S2"].consume("worker", "work")
        assert await domains["S1"].call("work", b"x", timeout=3) == b"x"


async def test_a_removed_cell_finishes_what_it_has() -> None:
    async with Domains(1, 2) as domains:
        gate = domains.add("S2", "worker", Gate(), consume=["work"])
        await domains.settled()
        calls = [asyncio.ensure_future(domains["S1"].call("work", b"%d" % n)) for n in range(3)]
        await eventually(lambda: len(domains["S2"]._runner("worker").mailbox) == 2)
        remove = asyncio.ensure_future(domains["S2"].remove_cell("worker", 5.0))
        await eventually(lambda: not domains["C1"].table.queues("work"))
        with pytest.raises(cells.NoRouteError):
            await domains["S1"].call("worker@S2", wait=False)
        gate.open()
        assert [await call for call in calls] == [b"0", b"1", b"2"]
        await remove
        domains["S2"].add_function("worker", Inbox(), consume=["work"])
        assert await domains["S1"].call("work", b"new", timeout=5) == b"new"
