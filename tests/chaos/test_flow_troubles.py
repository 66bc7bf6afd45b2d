"""Scenarios of flows with more to them than one death; their ids are those of `flow_scenarios`."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path

import pytest

from postroad.flows.head import parse_id
from postroad.flows.messages import QUEUE
from tests.chaos.flow_bank import LINES
from tests.chaos.flow_processes import FlowNode, all_ended, flow_nodes
from tests.support.deadlines import eventually
from tests.support.durable.mail_node import LIMITS
from tests.support.durable.mail_processes import STORES, introduce
from tests.support.flows.kill_scenarios import (
    AFTER,
    BEGINS,
    CLAIMED,
    DISK,
    DONE,
    HANDLED,
    LETTER,
    PAYEE,
    PAYER,
    SCHEDULED,
    TROUBLES,
)

CENTS = 100
PAYMENTS = 10
PAYMENTS_MANY = 50
"""So many that some are under way whenever one is."""
TERMINATED = 128 + signal.SIGTERM
DAY_MS = 24 * 3600 * 1000
DISK_BYTES = 4_096
"""So small that nothing can be committed."""


async def begin_payments(payer: FlowNode, count: int = PAYMENTS) -> list[str]:
    payments = [f"payment-{number}" for number in range(count)]
    for payment in payments:
        await payer.begin(payment, "pay", PAYEE, payment, CENTS)
    return payments


async def check_payments(payer: FlowNode, payee: FlowNode, payments: list[str]) -> None:
    """Each was made once, and nothing is left of it."""
    await all_ended(payer, payee)
    for payment in payments:
        assert await payer.result(payment) == {"value": f"took {payment}"}
        assert payer.moves(payment) == [-CENTS]
        assert payee.moves(payment) == [CENTS]
    assert payer.dead == payee.dead == []


async def all_heard(*banks: FlowNode) -> None:
    await eventually(lambda: not any(bank.waiting for bank in banks), "no mail is under way")


async def responder_of(payee: FlowNode, id: str) -> str:
    await eventually(lambda: bool(payee.responders(id)), "a responder")
    (responder,) = payee.responders(id)
    return responder


def test_every_scenario_is_played() -> None:
    tests = [it for name, it in globals().items() if name.startswith("test_")]
    ids = {id for test in tests for id in re.findall(r"\b[SRFP]\d+\b", test.__doc__ or "")}
    assert ids == TROUBLES


# Receiving.


async def test_pause_of_the_receiver(tmp_path: Path) -> None:
    """R8: the link breaks while it has letters in hand, and they are sent again."""
    async with flow_nodes(tmp_path, PAYER, PAYEE) as (payer, payee):
        payer.lose(payee)
        payments = await begin_payments(payer, PAYMENTS_MANY)
        payer.meet(payee)
        await eventually(lambda: payee.begun > 0, "a letter was taken")
        payee.signal(signal.SIGSTOP)
        # Longer than the other side waits for a sign of life.
        await asyncio.sleep(LIMITS.heartbeat_timeout_s * 1.5)
        payee.signal(signal.SIGCONT)
        await check_payments(payer, payee, payments)


@pytest.mark.parametrize("state", ["ended", "unknown"])
async def test_letter_for_a_flow_that_is_gone(tmp_path: Path, state: str) -> None:
    """R10."""
    async with flow_nodes(tmp_path, PAYER, PAYEE) as (payer, payee):
        id = await payer.begin("question", "ask", PAYEE, "question")
        responder = await responder_of(payee, id)
        await all_heard(payer, payee)
        payee.lose(payer)
        assert await payee.operate("signal", responder, "answer", True)
        await eventually(lambda: payee.waiting > 0, "the answer is on its way")
        assert await payer.operate("kill", id)
        if state == "unknown":
            assert await payer.do("forget", "question")
        payer.tell("arm", LETTER, "-", 1)
        payee.meet(payer)
        await payer.dies()
        await payer.start()
        introduce(payer, payee)
        await all_ended(payer, payee)
        assert payer.status(id) == ("killed" if state == "ended" else "unknown")
        assert payee.notes("question") == ["PeerFailed"]
        assert payer.dead == payee.dead == []


async def test_garbage(tmp_path: Path) -> None:
    """R11."""
    async with flow_nodes(tmp_path, PAYER, PAYEE) as (payer, payee):
        payee.tell("arm", AFTER, "unit=Handling", 1)
        assert await payer.do("post", PAYEE, QUEUE, "garbage")
        await payee.dies()
        await payee.start()
        introduce(payer, payee)
        payments = await begin_payments(payer, 1)
        await all_ended(payer, payee)
        assert await payer.result(payments[0]) == {"value": f"took {payments[0]}"}
        assert payee.dead == [(0, "rejected", 1)]


async def test_flow_that_nobody_knows_yet(tmp_path: Path) -> None:
    """R13: it is held with all that was said to it, until there is code for it."""
    async with flow_nodes(tmp_path, PAYER, PAYEE) as (payer, payee):
        await payee.stop()
        await payee.start("silent")
        introduce(payer, payee)
        payee.tell("arm", AFTER, "flow=dictate&status=held", 1)
        id = await payer.begin("letter", "dictate", PAYEE, "letter")
        await payee.dies()
        await payee.start("silent")
        introduce(payer, payee)
        assert await payer.operate("signal", id, "more", True)
        await all_heard(payer, payee)
        responder = await responder_of(payee, id)
        assert payee.status(responder) == "held"
        await payee.kill()
        await payee.start()
        introduce(payer, payee)
        assert await payee.operate("signal", responder, "listen", True)
        await all_ended(payer, payee)
        assert payee.notes("letter") == [*(f"letter {it}" for it in range(LINES)), "end"]


async def test_signal_while_a_transaction_is_open(tmp_path: Path) -> None:
    """S3: it is read after the transaction, and is not there any more then."""
    async with flow_nodes(tmp_path, PAYER) as (payer,):
        id = await payer.begin("numbers", "heed", "numbers")
        await eventually(lambda: bool(payer.done_outside("numbers")), "the transaction is open")
        signalling = asyncio.get_running_loop().create_task(
            payer.operate("signal", id, "number", 1)
        )
        # Until it has come to the flow, whose commits have to wait.
        await asyncio.sleep(0.2)
        (tmp_path / f"{PAYER}.go").touch()
        assert await signalling
        await eventually(lambda: payer.notes("numbers") == ["slowly", "heard"], "it was heard")
        assert payer.kept == 0
        await payer.kill()
        await payer.start()
        assert await payer.operate("signal", id, "number", 2)
        assert await payer.result("numbers") == {"value": [1, 2]}


# Operators.


async def test_pause_of_a_flow(tmp_path: Path) -> None:
    """F10, R10: what is said to it is kept over a death, in order."""
    async with flow_nodes(tmp_path, PAYER, PAYEE) as (payer, payee):
        id = await payer.begin("letter", "dictate", PAYEE, "letter")
        responder = await responder_of(payee, id)
        assert await payee.operate("pause", responder)
        payee.tell("arm", AFTER, "flow=listen&has=keeps", 1)
        assert await payer.operate("signal", id, "more", True)
        await payee.dies()
        await payee.start()
        introduce(payer, payee)
        assert await payer.result("letter") == {"value": LINES}
        assert await payee.operate("signal", responder, "listen", True)
        await all_heard(payer, payee)
        assert payee.status(responder) == "paused"
        assert payee.notes("letter") == []
        assert await payee.operate("resume", responder)
        await all_ended(payer, payee)
        assert payee.notes("letter") == [*(f"letter {it}" for it in range(LINES)), "end"]


async def test_flow_that_is_parked(tmp_path: Path) -> None:
    """F11: it is tried again when the process is started, and no step is lost."""
    async with flow_nodes(tmp_path, PAYER) as (payer,):
        payer.tell("arm", AFTER, "flow=doubt&status=parked", 1)
        id = await payer.begin("doubt", "doubt", "doubt")
        await payer.dies()
        await payer.start()
        view = await payer.show(id)
        assert "LookupError: nobody knows doubt" in view["error"]
        await eventually(lambda: payer.status(id) == "parked", "it is parked again")
        await payer.kill()
        await payer.start("mended")
        assert await payer.result("doubt") == {"value": "known"}
        assert payer.notes("doubt") == ["before", "after"]


async def test_result_that_cannot_be_written_down(tmp_path: Path) -> None:
    """P8."""
    async with flow_nodes(tmp_path, PAYER) as (payer,):
        await payer.stop()
        await payer.start("odd")
        payer.tell("arm", AFTER, "flow=doubt&status=parked", 1)
        id = await payer.begin("doubt", "doubt", "doubt")
        await payer.dies()
        await payer.start("odd")
        await eventually(lambda: payer.status(id) == "parked", "it is parked")
        view = await payer.show(id)
        assert "what step 'ask' returned cannot be written down" in view["error"]
        await payer.kill()
        await payer.start("mended")
        assert await payer.result("doubt") == {"value": "known"}
        assert payer.notes("doubt") == ["before", "after"]


# Code.


@pytest.mark.parametrize(
    ("code", "difference"),
    [
        ("fewer", "1 step(river)"),
        ("extra", "it was about 'river', and is about 'road'"),
        ("reordered", "it was about 'home', and is about 'river'"),
        ("arguments", "its arguments are others"),
        ("shorter", "the code has ended"),
    ],
    ids=["fewer", "extra", "reordered", "arguments", "shorter"],
)
async def test_changed_code(tmp_path: Path, code: str, difference: str) -> None:
    """F13, P7: parked with what differs, and unharmed."""
    async with flow_nodes(tmp_path, PAYER) as (payer,):
        id = await payer.begin("tour", "journey", "tour")
        await eventually(lambda: steps_of(payer) == 2, "two steps are recorded")
        await payer.kill()
        await payer.start(code)
        payer.tell("arm", AFTER, "flow=journey&status=parked", 1)
        payer.tell("operate", "signal", id, ["go", True])
        await payer.dies()
        await payer.start(code)
        assert await payer.operate("signal", id, "go", True)
        await eventually(lambda: payer.status(id) == "parked", "it is parked")
        detail = (await payer.show(id))["detail"]
        assert "the code of this flow does not fit its record" in detail
        assert difference in detail
        assert steps_of(payer) == 2
        await payer.kill()
        await payer.start()
        assert await payer.result("tour") == {"value": ["home", "river", "hill"]}
        done = [what for what, _ in payer.done_outside("tour")]
        assert done == ["home", "river", "hill"]


def steps_of(payer: FlowNode) -> int:
    return int(payer.query("SELECT COUNT(*) FROM postroad_flow_steps")[0][0])


# Schedules.


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("point", SCHEDULED)
async def test_time_of_a_schedule(tmp_path: Path, point: str, store: str) -> None:
    """F16: however often it dies at that time, one flow is begun for it."""
    async with flow_nodes(tmp_path, PAYER, store=store) as (payer,):
        assert await payer.do("schedule", "daily", "0 3 * * *", "errand", ["daily"])
        await payer.kill()
        payer.query("UPDATE postroad_flow_schedules SET next_ms = next_ms - ?", DAY_MS)
        await payer.launch("usual", point, "-", "1")
        await payer.dies()
        await payer.start()
        begun = "SELECT id FROM postroad_flows WHERE client_id LIKE 'schedule:daily:%'"
        await eventually(lambda: bool(payer.query(begun)), "it was begun")
        await all_ended(payer)
        assert len(payer.query(begun)) == 1
        done = payer.done_outside("daily")
        assert [what for what, _ in dict.fromkeys(done)] == ["first", "second", "third"]


# Clocks.


async def test_clock_that_is_set_back(tmp_path: Path) -> None:
    """P10: the first process is a day ahead of the second, which it ends before."""
    daily = ("schedule", "daily", "0 3 * * *", "errand", ["daily"])
    begun = "SELECT id FROM postroad_flows WHERE client_id LIKE 'schedule:daily:%'"
    wakes = "SELECT wake_ms FROM postroad_flows WHERE client_id = 'long'"
    newest = "SELECT MAX(id) FROM postroad_flows"
    async with flow_nodes(tmp_path, PAYER) as (payer,):
        assert await payer.do(*daily)
        assert await payer.do("clock", DAY_MS / 1000) == "shifted"
        # Whoever says it again has it looked at.
        assert await payer.do(*daily)
        await eventually(lambda: len(payer.query(begun)) == 1, "it was begun")
        long = await payer.begin("long", "nap", "long", 3600)
        payer.tell("arm", AFTER, "flow=errand&has=is_over", 1)
        first = await payer.begin("first", "errand", "first")
        await payer.dies()
        (asleep,), (last,) = payer.query(wakes)[0], payer.query(newest)[0]

        await payer.start()
        assert await payer.do(*daily)
        assert await payer.begin("first", "errand", "first") == first
        assert parse_id(await payer.begin("second", "errand", "second")) > last
        for client in ("first", "second"):
            assert await payer.result(client) == {"value": ["first", "second", "third"]}
            assert len(set(payer.done_outside(client))) == 3
        assert len(payer.query(begun)) == 1
        assert payer.status(long) == "running"
        assert payer.query(wakes) == [(asleep,)]
        assert await payer.operate("kill", long)
        await all_ended(payer)


async def test_clock_that_is_set_back_while_a_flow_sleeps(tmp_path: Path) -> None:
    """P10: it sleeps until the time it is to wake at, and time does not go back for it."""
    async with flow_nodes(tmp_path, PAYER) as (payer,):
        id = await payer.begin("nap", "nap", "nap", 0.5)
        (wakes_ms,) = payer.query("SELECT wake_ms FROM postroad_flows")[0]
        assert await payer.do("clock", -1.0) == "shifted"
        assert (await payer.result("nap"))["value"] >= 0.5
        view = await payer.show(id)
        assert view["ended_at"] * 1000 >= wakes_ms
        assert payer.notes("nap") == ["awake"]


# Processes and disks.


@pytest.mark.parametrize(
    ("victim", "point", "where", "nth"),
    [
        (PAYER, HANDLED, "flow=pay&event=StepDone", 5),
        (PAYER, DONE, "step=move", 5),
        (PAYER, "flows.commit.durable", "flow=pay", 5),
        (PAYER, AFTER, "flow=pay&has=is_over", 1),
        (PAYEE, LETTER, "-", 5),
        (PAYEE, HANDLED, "flow=credit&event=Admitted", 5),
        (PAYEE, BEGINS, "step=move", 5),
    ],
)
async def test_soft_stop_at(tmp_path: Path, victim: str, point: str, where: str, nth: int) -> None:
    """F14: in the midst of a transition."""
    async with flow_nodes(tmp_path, PAYER, PAYEE) as (payer, payee):
        stopped = payer if victim == PAYER else payee
        stopped.tell("halt", point, where, nth)
        payments = [f"payment-{number}" for number in range(PAYMENTS)]
        beginning = asyncio.get_running_loop().create_task(begin_payments(payer))
        assert await stopped.ends() == TERMINATED
        await asyncio.gather(beginning, return_exceptions=True)
        await stopped.start()
        introduce(payer, payee)
        assert await begin_payments(payer) == payments
        await check_payments(payer, payee, payments)


@pytest.mark.parametrize("victim", [PAYER, PAYEE])
async def test_soft_stop(tmp_path: Path, victim: str) -> None:
    """F14."""
    async with flow_nodes(tmp_path, PAYER, PAYEE) as (payer, payee):
        payer.lose(payee)
        payments = await begin_payments(payer, PAYMENTS_MANY)
        payer.meet(payee)
        await eventually(lambda: payee.begun > 0, "a letter was taken")
        stopped = payer if victim == PAYER else payee
        await stopped.stop()
        await stopped.start()
        introduce(payer, payee)
        await check_payments(payer, payee, payments)


@pytest.mark.parametrize("victim", [PAYER, PAYEE])
async def test_disk_that_takes_nothing(tmp_path: Path, victim: str) -> None:
    """F15: flows wait for it, and go on where they were."""
    async with flow_nodes(tmp_path, PAYER, PAYEE) as (payer, payee):
        payer.lose(payee)
        payments = await begin_payments(payer)
        await eventually(lambda: payer.waiting == PAYMENTS, "all are to be sent")
        poor = payer if victim == PAYER else payee
        await poor.limit_disk(DISK_BYTES)
        payer.meet(payee)
        # Some attempts fail meanwhile; the time of them is what is tested.
        await asyncio.sleep(0.5)
        assert payer.unfinished == PAYMENTS
        await poor.limit_disk(0)
        await check_payments(payer, payee, payments)


@pytest.mark.parametrize("nth", [1, 5])
@pytest.mark.parametrize("point", DISK)
async def test_death_while_the_disk_takes_nothing(tmp_path: Path, point: str, nth: int) -> None:
    """F15: what could not be written has not happened, and is done by the next process."""
    async with flow_nodes(tmp_path, PAYER) as (payer,):
        naps = [f"nap-{number}" for number in range(3)]
        for nap in naps:
            await payer.begin(nap, "nap", nap, 0.3)
        payer.tell("arm", point, "-", nth)
        await payer.limit_disk(DISK_BYTES)
        await payer.dies()
        await payer.start()
        await all_ended(payer)
        for nap in naps:
            assert "value" in await payer.result(nap)
            assert payer.notes(nap) == ["awake"]


async def test_disk_that_takes_nothing_when_a_flow_wakes(tmp_path: Path) -> None:
    """P6."""
    async with flow_nodes(tmp_path, PAYER) as (payer,):
        ids = [await payer.begin(f"nap-{it}", "nap", f"nap-{it}", 0.3) for it in range(3)]
        await payer.limit_disk(DISK_BYTES)
        # They should wake meanwhile, and cannot.
        await asyncio.sleep(0.6)
        assert [payer.status(id) for id in ids] == ["running"] * 3
        await payer.limit_disk(0)
        await all_ended(payer)
        for number in range(3):
            assert "value" in await payer.result(f"nap-{number}")
            assert payer.notes(f"nap-{number}") == ["awake"]


async def test_two_processes_with_one_store(tmp_path: Path) -> None:
    """P5: whoever comes second does not start, even while the first one stands still."""
    async with flow_nodes(tmp_path, PAYER) as (payer,):
        id = await payer.begin("choice", "choose", "choice")
        await eventually(lambda: bool(payer.done_outside("choice")), "it waits")
        payer.signal(signal.SIGSTOP)
        second = FlowNode(PAYER, tmp_path)
        await second.launch()
        try:
            assert await second.ends() == 1
        finally:
            await second.kill()
        payer.signal(signal.SIGCONT)
        assert await payer.operate("signal", id, "first", True)
        assert await payer.result("choice") == {"value": "first"}
        assert len(payer.done_outside("choice")) == 1


async def test_process_that_takes_over(tmp_path: Path) -> None:
    """P5: killed the moment it has the store, or refused; one of them goes on with the flow."""
    async with flow_nodes(tmp_path, PAYER) as (payer,):
        id = await payer.begin("choice", "choose", "choice")
        await eventually(lambda: bool(payer.done_outside("choice")), "it waits")
        heirs = [FlowNode(PAYER, tmp_path) for _ in range(3)]
        try:
            await heirs[0].launch("usual", CLAIMED, "-", "1")
            # The first one has it, so this one does not come that far.
            assert await heirs[0].ends() == 1
            await payer.kill()
            await heirs[0].launch("usual", CLAIMED, "-", "1")
            await heirs[0].dies()
            for heir in heirs:
                await heir.launch()
            running, refused = await sort_out(heirs)
            assert len(running) == 1 and len(refused) == 2
            assert await running[0].operate("signal", id, "first", True)
            assert await running[0].result("choice") == {"value": "first"}
        finally:
            for heir in heirs:
                await heir.kill()


async def sort_out(heirs: list[FlowNode]) -> tuple[list[FlowNode], list[FlowNode]]:
    """Those that have started, and those that ended instead."""
    running, refused = [], []
    for heir in heirs:
        if line := await heir.line():
            heir.address = json.loads(line)
            running.append(heir)
        else:
            assert await heir.ends() == 1
            refused.append(heir)
    return running, refused
