"""A call that goes a short way ends like the first one, which cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from postroad.cells import CellDomain, CellMessage, FunctionCell
from postroad.cells.delivery.fast_paths import (
    DeliverFastPath,
    ForwardFastPath,
    NoFastPath,
    ReplyFastPath,
)
from postroad.core.errors import MessagingError
from tests.support.cells.nodes import Domains, Gate, Inbox, cut, link_of, quick
from tests.support.deadlines import DEADLINE_S, eventually

CALLS = 5


def ways_of(domain: CellDomain, peer: str) -> list[type]:
    """The sorts of short ways that a domain remembers for what a peer sends."""
    return [type(path) for path in link_of(domain, peer)._fast_paths.values()]


def answer_value(message: CellMessage) -> object:
    return {"n": 1}


async def answer_later(message: CellMessage) -> bytes:
    await asyncio.sleep(0)
    return message.payload


def answer_nothing(message: CellMessage) -> None:
    return None


def fail(message: CellMessage) -> bytes:
    raise ValueError("no")


async def fail_later(message: CellMessage) -> bytes:
    await asyncio.sleep(0)
    raise ValueError("not now")


def answer_nonsense(message: CellMessage) -> object:
    return object()


def answer_too_much(message: CellMessage) -> bytes:
    return bytes(8_000_000)


async def outcome_of(domain: CellDomain, body: Any, *, wait: bool = True) -> tuple[Any, ...]:
    try:
        return ("answer", await domain.call("cell@S2", body, timeout=DEADLINE_S, wait=wait))
    except MessagingError as error:
        return type(error).__name__, error.detail, error.outcome


@pytest.mark.parametrize(
    "handler",
    [
        Inbox(), answer_value, answer_later, answer_nothing, fail, fail_later, answer_nonsense,
        answer_too_much,
    ],
)  # fmt: skip
async def test_calls_have_the_same_result_on_either_path(
    handler: Callable[[CellMessage], Any],
) -> None:
    async with Domains(1, 2) as domains:
        for body in (b"", b"x" * 70_000, "text", {"a": [1]}):
            domains["S2"].add_function("cell", handler)
            first = await outcome_of(domains["S1"], body)
            for _ in range(CALLS):
                assert await outcome_of(domains["S1"], body) == first, body
            # The next body begins anew, the long way.
            await domains["S2"].remove_cell("cell")


async def test_every_domain_uses_the_fast_path() -> None:
    async with Domains(1, 2) as domains:
        inbox = domains.add("S2", "cell", Inbox())
        for _ in range(CALLS):
            assert await domains["S1"].call("cell@S2", b"x") == b"x"
        assert domains["S1"]._call_routes["cell@S2"] is not None
        assert DeliverFastPath in ways_of(domains["S2"], "C1")
        assert ReplyFastPath in ways_of(domains["S1"], "C1")
        assert {*ways_of(domains["C1"], "S1"), *ways_of(domains["C1"], "S2")} == {ForwardFastPath}
        first, *others = inbox.messages
        for message in others:
            assert (message.sender, message.path, message.route_name) == (
                *(first.sender, first.path, first.route_name),
            )
            assert message.wants_reply and message.deadline is not None
        assert len({message.id for message in inbox.messages}) == CALLS


async def test_counters_are_equal_on_either_path() -> None:
    async with Domains(1, 2) as domains:
        domains["S2"].add_function("cell", Inbox())
        counted = []
        for _ in range(3):
            before = [(counts.delivered, counts.forwarded) for counts in statistics_of(domains)]
            await domains["S1"].call("cell@S2", b"x")
            after = [(counts.delivered, counts.forwarded) for counts in statistics_of(domains)]
            counted.append([(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)])
        assert counted[0] == counted[1] == counted[2]


def statistics_of(domains: Domains) -> list[Any]:
    return [domains[name].statistics() for name in ("S1", "C1", "S2")]


async def test_a_busy_cell_refuses_and_keeps_the_order() -> None:
    config = quick(mailbox_messages_max=4)
    async with Domains(1, 2, config=config) as domains:
        gate = domains.add("S2", "cell", Gate())
        gate.open()
        for n in range(CALLS):
            await domains["S1"].call("cell@S2", b"%d" % n)
        again = Gate()
        await domains["S2"].remove_cell("cell")
        domains["S2"].add_function("cell", again)
        calls = [asyncio.create_task(outcome_of(domains["S1"], b"%d" % n)) for n in range(CALLS)]
        await eventually(lambda: len(again.begun) == 1)
        again.open()
        outcomes = await asyncio.gather(*calls)
        answered = [outcome[1] for outcome in outcomes if outcome[0] == "answer"]
        assert answered == again.finished
        assert {outcome[0] for outcome in outcomes} <= {"answer", "CellBusyError"}


async def test_removed_cell_is_not_called() -> None:
    async with Domains(1, 2) as domains:
        for _ in range(2):
            domains["S2"].add_function("cell", Inbox())
            for _ in range(CALLS):
                assert (await outcome_of(domains["S1"], b"x")) == ("answer", b"x")
            await domains["S2"].remove_cell("cell")
            name, *_ = await outcome_of(domains["S1"], b"x", wait=False)
            assert name == "NoRouteError"


async def test_other_core_is_used_when_the_usual_one_is_lost() -> None:
    async with Domains(2, 2) as domains:
        domains["S2"].add_function("cell", Inbox())
        for gone in ("C1", "C2", "C1"):
            for _ in range(CALLS):
                assert await domains["S1"].call("cell@S2", b"x", timeout=5.0) == b"x"
            await cut(domains["S1"], gone)


async def test_expired_message_is_not_handled_on_the_fast_path() -> None:
    async with Domains(1, 2) as domains:
        inbox = domains.add("S2", "cell", Inbox())
        for _ in range(CALLS):
            await domains["S1"].call("cell@S2", b"x")
        handled = len(inbox.messages)
        with pytest.raises(MessagingError):
            await domains["S1"].call("cell@S2", b"late", timeout=0.0001)
        await domains["S1"].call("cell@S2", b"y")
        assert len(inbox.messages) - handled <= 2
        assert inbox.payloads[-1] == b"y"


def way_of(domain: CellDomain, peer: str, route: bytes) -> object:
    """What a domain remembers for the messages of a peer that have this in their route."""
    ways = link_of(domain, peer)._fast_paths
    [way] = [way for prefix, way in ways.items() if route in prefix]
    return way


@pytest.mark.parametrize("destination", ["cell@S2", "work"])
async def test_one_way_messages_use_the_fast_path(destination: str) -> None:
    async with Domains(1, 2) as domains:
        inbox = domains.add("S2", "cell", Inbox(), consume=["work"])
        await domains["S2"].wait_routes_acknowledged()
        for n in range(CALLS):
            await domains["S1"].send(destination, b"%d" % n)
        await eventually(lambda: len(inbox.messages) == CALLS)
        assert inbox.payloads == [b"%d" % n for n in range(CALLS)]
        assert len({message.route_name for message in inbox.messages}) == 1
        assert not any(message.wants_reply for message in inbox.messages)
        route = destination.encode()
        assert type(way_of(domains["C1"], "S1", route)) is ForwardFastPath
        assert type(way_of(domains["S2"], "C1", route)) is DeliverFastPath


async def test_one_way_messages_fail_the_same_on_either_path() -> None:
    async with Domains(1, 2) as domains:
        for handler in (fail, fail_later):
            domains["S2"].add_function("cell", handler)
            before = domains["S2"].statistics().failed
            for _ in range(CALLS):
                await domains["S1"].send("cell@S2", b"x")
            failed = before + CALLS
            await eventually(lambda: domains["S2"].statistics().failed == failed)  # noqa: B023
            await domains["S2"].remove_cell("cell")


def has_news(inbox: Inbox, expected: list[bytes]) -> bool:
    return [
        message.payload for message in inbox.messages if message.route_name == "news"
    ] == expected


async def test_missing_fast_path_is_cached() -> None:
    async with Domains(1, 3) as domains:
        inboxes = {name: Inbox() for name in ("S2", "S3")}
        for name, inbox in inboxes.items():
            domains[name].add_function("cell", inbox, subscribe=["news"], consume=["work"])
            await domains[name].wait_routes_acknowledged()
        for n in range(CALLS):
            domains["S1"].publish("news", b"%d" % n)
            await domains["S1"].send("work", b"w")
        expected = [b"%d" % n for n in range(CALLS)]
        for inbox in inboxes.values():
            await eventually(partial(has_news, inbox, expected))
        await eventually(
            lambda: sum(len(inbox.messages) for inbox in inboxes.values()) == 3 * CALLS
        )
        core = domains["C1"]
        ways = [way_of(core, "S1", name) for name in (b"news", b"work")]
        assert {*map(type, ways)} == {NoFastPath}
        # One of several consumers remains: then all messages go to it.
        domains["S3"].stop_consuming("cell", "work")
        await eventually(lambda: len(core.table.queues("work")) == 1)
        for _ in range(2):
            await domains["S1"].call("work", b"x")
        assert type(way_of(core, "S1", b"work")) is ForwardFastPath
        assert way_of(core, "S1", b"news") is ways[0]


async def test_route_change_keeps_unaffected_fast_paths() -> None:
    async with Domains(1, 3) as domains:
        domains["S2"].add_function("cell", Inbox())
        for _ in range(2):
            await domains["S1"].call("cell@S2", b"x")
        unaffected = [
            domains["S1"]._call_routes["cell@S2"],
            way_of(domains["C1"], "S1", b"cell@S2"),
            way_of(domains["S2"], "C1", b"cell@S2"),
        ]
        domains["S3"].add_function("other", Inbox(), consume=["work"], subscribe=["news"])
        domains["S2"].add_function("third", Inbox(), consume=["more"])
        await domains["S3"].wait_routes_acknowledged()
        await domains["S2"].wait_routes_acknowledged()
        await cut(domains["S3"], "C1")
        assert await domains["S1"].call("cell@S2", b"x") == b"x"
        assert unaffected == [
            domains["S1"]._call_routes["cell@S2"],
            way_of(domains["C1"], "S1", b"cell@S2"),
            way_of(domains["S2"], "C1", b"cell@S2"),
        ]


async def test_calls_of_cells_have_fast_paths_of_their_own() -> None:
    async with Domains(1, 2) as domains:
        inbox = domains.add("S2", "cell", Inbox())
        callers = [FunctionCell(name, answer_nothing) for name in ("one", "two")]
        for caller in callers:
            await domains["S1"].add_cell(caller)
        for _ in range(CALLS):
            for caller in callers:
                assert await caller.call("cell@S2", b"x") == b"x"
        assert [str(message.sender) for message in inbox.messages] == ["one@S1", "two@S1"] * CALLS
        assert len(domains["S1"]._call_routes) == 2
