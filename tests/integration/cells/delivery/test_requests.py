"""Calls from domain to domain: replies, errors, and everything in between told apart."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from postroad import cells
from postroad.core import errors
from tests.support.cells.nodes import LIMITS, Domains, Gate, Inbox, link_of, quick
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.peers import nothing_left

SMALL_FRAMES = msgspec.structs.replace(LIMITS, frame_bytes_max=64 * 1024)


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        (b"raw", b"raw"),
        (b"", b""),
        ("größe", "größe"),
        (None, b""),
        ([1, {"a": None, "b": [b"c", 1.5]}], [1, {"a": None, "b": [b"c", 1.5]}]),
        (bytes(3 << 20), bytes(3 << 20)),
    ],
    ids=["bytes", "nothing", "text", "none", "values", "large"],
)
async def test_bodies_of_every_kind_round_trip(body: object, reply: object) -> None:
    async with Domains(1, 2) as domains:
        domains["S2"].add_function("echo", lambda message: message.body)
        for destination in ("echo@S2", cells.CellAddress("echo", "S2")):
            assert await domains["S1"].call(destination, body) == reply


async def test_outcomes_of_calls_have_distinct_errors() -> None:
    async with Domains(1, 2, config=quick(mailbox_messages_max=1)) as domains:
        caller, callee = domains["S1"], domains["S2"]
        gate = Gate()
        callee.add_function("echo", lambda message: message.payload)
        callee.add_function("slow", gate)
        callee.add_function("text", lambda message: message.body)

        @callee.cell("broken")
        def broken(message: cells.CellMessage) -> None:
            raise errors.UsageError("not today")

        assert await caller.call("echo@S2", b"x") == b"x"
        with pytest.raises(errors.RemoteHandlerError, match="not today") as failed:
            await caller.call("broken@S2")
        assert failed.value.remote_code == errors.UsageError.code
        assert (failed.value.subject, failed.value.outcome) == ("broken@S2", errors.Outcome.REPLIED)
        with pytest.raises(cells.NoRouteError, match="no cell 'nobody' in domain S2"):
            await caller.call("nobody@S2", wait=False)
        with pytest.raises(cells.NoRouteError, match="S9"):
            await caller.call("echo@S9", wait=False)
        with pytest.raises(errors.ReplyTimeoutError) as silent:
            await caller.call("slow@S2", b"1", timeout=0.5)
        assert silent.value.outcome is errors.Outcome.UNKNOWN
        await caller.send("slow@S2", b"2")
        await eventually(lambda: len(domains["S2"]._runner("slow").mailbox) == 1)
        with pytest.raises(cells.CellBusyError) as busy:
            await caller.call("slow@S2", b"3")
        assert (busy.value.retryable, busy.value.outcome) == (True, errors.Outcome.REPLIED)
        gate.open()
        await eventually(lambda: gate.finished == [b"1", b"2"])


async def test_undecodable_payload_raises_its_own_error() -> None:
    async with Domains(1, 2) as domains:
        domains["S2"].add_function("text", lambda message: message.body)
        caller = domains["S1"]
        draft = caller._envelope_factory(
            "text@S2", b"\xff", None, content_type="json", wants_reply=True
        )
        with pytest.raises(errors.RemoteDecodeError, match="payload is not valid json"):
            await caller._calls.call(draft, 5.0, wait=True)


async def test_expired_message_in_a_mailbox_is_answered_and_not_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Half of its time is for the way back, so that the answer is in time on any machine.
    monkeypatch.setattr("postroad.cells.delivery.envelope._REPLY_SHARE", 2)
    async with Domains(1, 2) as domains:
        gate = domains.add("S2", "slow", Gate())
        await domains["S1"].send("slow@S2", b"working")
        call = asyncio.ensure_future(domains["S1"].call("slow@S2", b"late", timeout=4.0))
        await eventually(lambda: len(domains["S2"]._runner("slow").mailbox) == 1)
        await asyncio.sleep(2.2)
        gate.open()
        with pytest.raises(cells.MessageExpiredError, match="expired in the mailbox of cell slow"):
            await call
        assert gate.finished == [b"working"]
        assert domains["S2"].statistics().expired == 1


async def test_consumer_that_appears_later_is_found() -> None:
    async with Domains(2, 2) as domains:
        links = domains["S1"].links.by_domain.values()

        def answers() -> int:
            return sum(link.statistics().received for link in links)

        before = answers()
        calls = [
            asyncio.ensure_future(domains["S1"].call(name, b"x", timeout=DEADLINE_S))
            for name in ("work", "late@S2")
        ]
        # Both were told that there is no route, and wait for one.
        await eventually(lambda: answers() >= before + 2)
        assert not any(call.done() for call in calls)
        inbox = domains.add("S2", "late", Inbox(), consume=["work"])
        assert await asyncio.gather(*calls) == [b"x", b"x"]
        assert inbox.payloads == [b"x", b"x"]


async def test_call_without_taker_raises_no_route_quoting_a_core() -> None:
    """In time, or at once if it does not wait."""
    async with Domains(2, 1) as domains:
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(cells.NoRouteError, match=r"no route for work@local at C[12]") as caught:
            await domains["S1"].call("work", b"x", timeout=0.5)
        assert loop.time() - started > 0.4
        assert caught.value.timeout_s == 0.5
        assert len(domains["S1"]._calls) == 0
        with pytest.raises(cells.NoRouteError) as caught:
            await domains["S1"].call("work", b"x", timeout=10 * DEADLINE_S, wait=False)
        assert caught.value.elapsed_s is not None and caught.value.elapsed_s < DEADLINE_S


async def test_alias_loop_across_domains_is_reported() -> None:
    async with Domains(1, 2) as domains:
        there = [cells.Route.alias(cells.CellAddress("x", "S2"), cells.CellAddress("y", "S2"))]
        domains["S1"].change_routes(added=there)
        domains["S1"].change_routes(
            added=[cells.Route.alias(cells.CellAddress("y", "S2"), cells.CellAddress("x", "S2"))]
        )
        with pytest.raises(cells.HopLimitExceededError, match="aliases"):
            await domains["S1"].call("x@S2", timeout=5)


async def test_looping_path_is_reported() -> None:
    async with Domains(1, 2) as domains:
        for name in ("S1", "S2"):
            domains[name].add_function("r", Inbox())
        circle = ":".join(["r@S2", "r@S1"] * 30)
        with pytest.raises(cells.HopLimitExceededError, match="hops"):
            await domains["S1"].call(circle, b"x", timeout=5)
        assert await domains["S1"].call("r@S2", b"still") == b"still"


# Sizes.


async def test_message_too_large_for_a_peer_fails_alone() -> None:
    small = {"S2": SMALL_FRAMES}
    async with Domains(1, 3, limits_of=small) as domains:
        inbox = Inbox()
        for name in ("S2", "S3"):
            domains[name].add_function("echo", inbox)
        large = bytes(1 << 20)
        with pytest.raises(errors.MessageTooLargeError):
            await domains["C1"].call("echo@S2", large)
        with pytest.raises(errors.MessageTooLargeError, match="bytes"):
            await domains["S1"].call("echo@S2", large)
        assert not inbox.messages
        assert await domains["S1"].call("echo@S3", large) == large
        assert await domains["S1"].call("echo@S2", b"small") == b"small"


async def test_reply_too_large_for_a_peer_fails_the_call() -> None:
    small = {"S1": SMALL_FRAMES}
    async with Domains(1, 2, limits_of=small) as domains:
        domains["S2"].add_function("large", lambda message: bytes(1 << 20))
        domains["S2"].add_function("echo", Inbox())
        with pytest.raises(errors.RemoteHandlerError, match="bytes") as caught:
            await domains["S1"].call("large@S2", timeout=2)
        # It was handled, so it is not for the caller to believe that nothing was sent.
        assert caught.value.outcome is errors.Outcome.REPLIED
        assert caught.value.remote_code == errors.MessageTooLargeError.code
        assert await domains["S1"].call("echo@S2", b"small") == b"small"


async def test_update_too_large_for_a_peer_reaches_the_others() -> None:
    small = {"S1": SMALL_FRAMES}
    async with Domains(1, 3, limits_of=small) as domains:
        names = [f"queue-{n}-{'x' * 50}" for n in range(3_000)]
        domains["C1"].add_function("many", Inbox(), consume=names)
        await eventually(
            lambda: all(len(domains[name].table.queues(names[0])) for name in ("S2", "S3"))
        )
        # There are other ways than to know of the queue.
        assert await domains["S1"].call(names[0], b"x", timeout=5) == b"x"


# The end.


async def test_calls_in_flight_fail_when_the_domain_stops() -> None:
    async with nothing_left(), Domains(1, 2) as domains:
        gate = domains.add("S2", "slow", Gate())
        far = asyncio.ensure_future(domains["S1"].call("slow@S2"))
        hopeful = asyncio.ensure_future(domains["S1"].call("nobody"))
        await eventually(lambda: gate.begun)
        await domains["S1"].stop(0.2)
        for call in (far, hopeful):
            with pytest.raises(errors.NotRunningError):
                await call
        with pytest.raises(errors.NotRunningError):
            await domains["S1"].call("slow@S2")
        with pytest.raises(errors.NotRunningError):
            domains["S1"].send_nowait("slow@S2")
        gate.open()


async def test_the_other_domain_stops_during_a_call() -> None:
    async with Domains(1, 2) as domains:
        gate = domains.add("S2", "slow", Gate())
        call = asyncio.ensure_future(domains["S1"].call("slow@S2"))
        await eventually(lambda: gate.begun)
        stop = asyncio.ensure_future(domains["S2"].stop(5.0))
        await asyncio.sleep(0.05)
        # What was begun is finished and answered, though nothing new gets there.
        gate.open()
        assert await call == b""
        await stop


async def test_unfinished_handler_is_cancelled_and_its_caller_answered() -> None:
    async with Domains(1, 2) as domains:
        gate = domains.add("S2", "slow", Gate())
        call = asyncio.ensure_future(domains["S1"].call("slow@S2", b"1"))
        waiting = asyncio.ensure_future(domains["S1"].call("slow@S2", b"2", wait=False))
        await eventually(lambda: len(domains["S2"]._runner("slow").mailbox) == 1)
        await domains["S2"].remove_cell("slow", 0.05)
        with pytest.raises(errors.RemoteHandlerError):
            await call
        with pytest.raises(cells.NoRouteError, match="cell slow stopped"):
            await waiting
        assert (gate.begun, gate.cancelled) == ([b"1"], 1)


async def test_cancelled_calls_leave_nothing_behind() -> None:
    async with nothing_left(), Domains(1, 2) as domains:
        gate = domains.add("S2", "slow", Gate(), concurrency=100)
        calls = [asyncio.ensure_future(domains["S1"].call("slow@S2")) for _ in range(50)]
        calls += [asyncio.ensure_future(domains["S1"].call("nobody")) for _ in range(50)]
        await eventually(lambda: len(gate.begun) == 50)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(domains["S1"]._calls) == 0
        gate.open()
        await eventually(lambda: domains["S1"].statistics().replies_late == 50)
        assert link_of(domains["S1"], "C1").statistics().waiting == 0
