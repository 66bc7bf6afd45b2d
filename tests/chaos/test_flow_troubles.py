"""Scenarios of flows with more to them than one death; their ids are those of `kill_scenarios`."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from postroad.flows.machine.state import parse_flow_id
from postroad.flows.sessions.messages import QUEUE
from tests.chaos.flow_bank import LINES
from tests.chaos.flow_processes import FlowNode, all_ended, flow_nodes
from tests.chaos.kills import BOTH_AT_NIGHT
from tests.support.deadlines import eventually
from tests.support.durable.mail_node import LIMITS
from tests.support.durable.mail_processes import STORES, introduce
from tests.support.flows import kill_scenarios
from tests.support.flows.kill_scenarios import AFTER, HANDLED, LETTER, PAYEE, PAYER
from tests.support.tiers import by_tier, sample

CENTS = 100
PAYMENTS = 10
PAYMENTS_MANY = 50
"""So many that some are under way whenever one is."""
TERMINATED = 128 + signal.SIGTERM
DAY_MS = 24 * 3600 * 1000
NAP_S = 1.0
"""So long that all of them have begun before the first one wakes, on slow machines too."""


@pytest.fixture(params=BOTH_AT_NIGHT)
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def banks(tmp_path: Path, store: str) -> AsyncIterator[list[FlowNode]]:
    async with flow_nodes(tmp_path, PAYER, PAYEE, store=store) as banks:
        yield banks


@pytest.fixture
def payer(banks: list[FlowNode]) -> FlowNode:
    return banks[0]


@pytest.fixture
def payee(banks: list[FlowNode]) -> FlowNode:
    return banks[1]


async def revive(victim: FlowNode, *others: FlowNode, code: str = "usual") -> None:
    """Start a bank again when it is dead."""
    await victim.dies()
    await victim.start(code)
    introduce(victim, *others)


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
    assert ids == kill_scenarios.TROUBLES


async def test_letters_to_a_paused_receiver_are_taken_once(
    payer: FlowNode, payee: FlowNode
) -> None:
    """R8: the link breaks while it has letters in hand, and they are sent again."""
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
async def test_letter_for_a_flow_that_is_gone_is_done_with(
    payer: FlowNode, payee: FlowNode, state: str
) -> None:
    """R10."""
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
    await revive(payer, payee)
    await all_ended(payer, payee)
    assert payer.status(id) == ("killed" if state == "ended" else "unknown")
    assert payee.notes("question") == ["PeerFlowFailedError"]
    assert payer.dead == payee.dead == []


async def test_garbage_is_a_dead_letter_and_flows_go_on(payer: FlowNode, payee: FlowNode) -> None:
    """R11."""
    payee.tell("arm", AFTER, "unit=DispositionMutation", 1)
    assert await payer.do("post", PAYEE, QUEUE, "garbage")
    await revive(payee, payer)
    payments = await begin_payments(payer, 1)
    await all_ended(payer, payee)
    assert await payer.result(payments[0]) == {"value": f"took {payments[0]}"}
    assert payee.dead == [(0, "rejected", 1)]


async def test_flow_without_code_is_held_until_there_is_code(
    payer: FlowNode, payee: FlowNode
) -> None:
    """R13: it is held with all that was said to it, until there is code for it."""
    await payee.stop()
    await payee.start("silent")
    introduce(payer, payee)
    payee.tell("arm", AFTER, "flow=dictate&status=held", 1)
    id = await payer.begin("letter", "dictate", PAYEE, "letter")
    await revive(payee, payer, code="silent")
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


async def test_signal_in_an_open_transaction_is_read_once_after_it(payer: FlowNode) -> None:
    """S3: it is read after the transaction, and is not there any more then."""
    id = await payer.begin("numbers", "heed", "numbers")
    await eventually(lambda: bool(payer.done_outside("numbers")), "the transaction is open")
    signalling = asyncio.get_running_loop().create_task(payer.operate("signal", id, "number", 1))
    # Until it has come to the flow, whose commits have to wait.
    await asyncio.sleep(0.2)
    (payer.directory / f"{PAYER}.go").touch()
    assert await signalling
    await eventually(lambda: payer.notes("numbers") == ["slowly", "heard"], "it was heard")
    assert payer.kept == 0
    await payer.kill()
    await payer.start()
    assert await payer.operate("signal", id, "number", 2)
    assert await payer.result("numbers") == {"value": [1, 2]}


async def test_paused_flow_keeps_over_a_death_what_is_said_to_it(
    payer: FlowNode, payee: FlowNode
) -> None:
    """F10, R10: what is said to it is kept over a death, in order."""
    id = await payer.begin("letter", "dictate", PAYEE, "letter")
    responder = await responder_of(payee, id)
    assert await payee.operate("pause", responder)
    payee.tell("arm", AFTER, "flow=listen&has=buffered", 1)
    assert await payer.operate("signal", id, "more", True)
    await revive(payee, payer)
    assert await payer.result("letter") == {"value": LINES}
    assert await payee.operate("signal", responder, "listen", True)
    await all_heard(payer, payee)
    assert payee.status(responder) == "paused"
    assert payee.notes("letter") == []
    assert await payee.operate("resume", responder)
    await all_ended(payer, payee)
    assert payee.notes("letter") == [*(f"letter {it}" for it in range(LINES)), "end"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("usual", "LookupError: nobody knows doubt"),
        ("odd", "what step 'ask' returned cannot be serialized"),
    ],
)
async def test_parked_flow_over_a_death_loses_no_step(
    payer: FlowNode, code: str, error: str
) -> None:
    """F11, P8: it is tried again when the process is started, and no step is lost."""
    await payer.stop()
    await payer.start(code)
    payer.tell("arm", AFTER, "flow=doubt&status=parked", 1)
    # It may die before it has answered.
    payer.tell("begin", "doubt", "doubt", ["doubt"])
    await revive(payer, code=code)
    id = await payer.begin("doubt", "doubt", "doubt")
    assert error in (await payer.show(id))["error"]
    await eventually(lambda: payer.status(id) == "parked", "it is parked again")
    await payer.kill()
    await payer.start("mended")
    assert await payer.result("doubt") == {"value": "known"}
    assert payer.notes("doubt") == ["before", "after"]


DIFFERENCES = {
    "fewer": "1 step(river)",
    "extra": "the name was 'river', and is 'road'",
    "reordered": "the name was 'home', and is 'river'",
    "arguments": "the arguments differ",
    "shorter": "the code has ended",
}


@pytest.mark.parametrize("code", sample([*DIFFERENCES], 2))
async def test_flow_with_changed_code_is_parked_unharmed(payer: FlowNode, code: str) -> None:
    """F13, P7: parked with what differs, and unharmed."""
    id = await payer.begin("tour", "journey", "tour")
    await eventually(lambda: steps_of(payer) == 2, "two steps are recorded")
    await payer.kill()
    await payer.start(code)
    payer.tell("arm", AFTER, "flow=journey&status=parked", 1)
    payer.tell("operate", "signal", id, ["go", True])
    await revive(payer, code=code)
    assert await payer.operate("signal", id, "go", True)
    await eventually(lambda: payer.status(id) == "parked", "it is parked")
    detail = (await payer.show(id))["detail"]
    assert "the code of this flow does not match its history" in detail
    assert DIFFERENCES[code] in detail
    assert steps_of(payer) == 2
    await payer.kill()
    await payer.start()
    assert await payer.result("tour") == {"value": ["home", "river", "hill"]}
    done = [what for what, _ in payer.done_outside("tour")]
    assert done == ["home", "river", "hill"]


def steps_of(payer: FlowNode) -> int:
    return int(payer.query("SELECT COUNT(*) FROM postroad_flow_steps")[0][0])


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("point", kill_scenarios.SCHEDULED)
async def test_schedule_with_a_death_at_its_time_begins_one_flow(
    payer: FlowNode, point: str
) -> None:
    """F16: however often it dies at that time, one flow is begun for it."""
    assert await payer.do("schedule", "daily", "0 3 * * *", "errand", ["daily"])
    await payer.kill()
    payer.query("UPDATE postroad_flow_schedules SET next_ms = next_ms - ?", DAY_MS)
    await payer.launch("usual", point, "-", "1")
    await revive(payer)
    begun = "SELECT id FROM postroad_flows WHERE client_id LIKE 'schedule:daily:%'"
    await eventually(lambda: bool(payer.query(begun)), "it was begun")
    await all_ended(payer)
    assert len(payer.query(begun)) == 1
    done = payer.done_outside("daily")
    assert [what for what, _ in dict.fromkeys(done)] == ["first", "second", "third"]


async def test_clock_set_back_between_processes_begins_nothing_again(payer: FlowNode) -> None:
    """P10: the first process is a day ahead of the second, which it ends before."""
    daily = ("schedule", "daily", "0 3 * * *", "errand", ["daily"])
    begun = "SELECT id FROM postroad_flows WHERE client_id LIKE 'schedule:daily:%'"
    wakes = "SELECT wake_ms FROM postroad_flows WHERE client_id = 'long'"
    newest = "SELECT MAX(id) FROM postroad_flows"
    assert await payer.do(*daily)
    assert await payer.do("clock", DAY_MS / 1000) == "shifted"
    # Whoever says it again has it looked at.
    assert await payer.do(*daily)
    await eventually(lambda: len(payer.query(begun)) == 1, "it was begun")
    # Its end is not the one that is waited for below.
    await all_ended(payer)
    long = await payer.begin("long", "nap", "long", 3600)
    payer.tell("arm", AFTER, "flow=errand&has=is_ended", 1)
    # It may die before it has answered.
    payer.tell("begin", "first", "errand", ["first"])
    await payer.dies()
    (asleep,), (last,) = payer.query(wakes)[0], payer.query(newest)[0]

    await payer.start()
    assert await payer.do(*daily)
    assert parse_flow_id(await payer.begin("first", "errand", "first")) == last
    assert parse_flow_id(await payer.begin("second", "errand", "second")) > last
    for client in ("first", "second"):
        assert await payer.result(client) == {"value": ["first", "second", "third"]}
        assert len(set(payer.done_outside(client))) == 3
    assert len(payer.query(begun)) == 1
    assert payer.status(long) == "running"
    assert payer.query(wakes) == [(asleep,)]
    assert await payer.operate("kill", long)
    await all_ended(payer)


async def test_clock_set_back_does_not_shorten_a_sleep(payer: FlowNode) -> None:
    """P10: it sleeps until the time it is to wake at, and time does not go back for it."""
    id = await payer.begin("nap", "nap", "nap", 0.5)
    (wakes_ms,) = payer.query("SELECT wake_ms FROM postroad_flows")[0]
    assert await payer.do("clock", -1.0) == "shifted"
    assert (await payer.result("nap"))["value"] >= 0.5
    view = await payer.show(id)
    assert view["ended_at"] * 1000 >= wakes_ms
    assert payer.notes("nap") == ["awake"]


SOFT_STOPS = [
    (PAYER, HANDLED, "flow=pay&event=StepCompleted", 5),
    (PAYER, kill_scenarios.DONE, "step=move", 5),
    (PAYER, "flows.commit.durable", "flow=pay", 5),
    (PAYER, AFTER, "flow=pay&has=is_ended", 1),
    (PAYEE, LETTER, "-", 5),
    (PAYEE, HANDLED, "flow=credit&event=FlowAdmitted", 5),
    (PAYEE, kill_scenarios.BEGINS, "step=move", 5),
]


@pytest.mark.parametrize(("victim", "point", "where", "nth"), sample(SOFT_STOPS, 3))
async def test_soft_stop_in_a_transition_loses_no_payment(
    payer: FlowNode, payee: FlowNode, victim: str, point: str, where: str, nth: int
) -> None:
    """F14."""
    stopped = payer if victim == PAYER else payee
    stopped.tell("halt", point, where, nth)
    beginning = asyncio.get_running_loop().create_task(begin_payments(payer))
    assert await stopped.ends() == TERMINATED
    await asyncio.gather(beginning, return_exceptions=True)
    await stopped.start()
    introduce(payer, payee)
    await check_payments(payer, payee, await begin_payments(payer))


@pytest.mark.parametrize("victim", [PAYER, PAYEE])
async def test_soft_stop_under_load_loses_no_payment(
    payer: FlowNode, payee: FlowNode, victim: str
) -> None:
    """F14."""
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
async def test_payments_on_a_full_disk_wait_and_go_on(
    payer: FlowNode, payee: FlowNode, victim: str
) -> None:
    """F15: flows wait for it, and go on where they were."""
    payer.lose(payee)
    payments = await begin_payments(payer)
    await eventually(lambda: payer.waiting == PAYMENTS, "all are to be sent")
    poor = payer if victim == PAYER else payee
    await poor.forbid_writing()
    payer.meet(payee)
    # Some attempts fail meanwhile; the time of them is what is tested.
    await asyncio.sleep(0.5)
    assert payer.unfinished == PAYMENTS
    await poor.allow_writing()
    await check_payments(payer, payee, payments)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("nth", by_tier(test=[2], nightly=[1, 5]))
@pytest.mark.parametrize("point", kill_scenarios.DISK)
async def test_death_while_nothing_can_be_written_loses_no_flow(
    payer: FlowNode, point: str, nth: int
) -> None:
    """F15: what could not be written has not happened, and is done by the next process."""
    naps = await begin_naps(payer)
    payer.tell("arm", point, "-", nth)
    await payer.forbid_writing()
    await payer.dies()
    await payer.allow_writing()
    await payer.start()
    await check_naps(payer, naps)


@pytest.mark.parametrize("store", STORES)
async def test_flow_that_wakes_while_nothing_can_be_written_waits(payer: FlowNode) -> None:
    """P6."""
    naps = await begin_naps(payer)
    await payer.forbid_writing()
    ((wakes_ms,),) = payer.query("SELECT MAX(wake_ms) FROM postroad_flows")
    # They should wake meanwhile, and cannot.
    await asyncio.sleep(wakes_ms / 1000 - time.time() + 0.2)
    assert payer.unfinished == len(naps)
    await payer.allow_writing()
    await check_naps(payer, naps)


async def begin_naps(payer: FlowNode) -> list[str]:
    naps = [f"nap-{number}" for number in range(3)]
    for nap in naps:
        await payer.begin(nap, "nap", nap, NAP_S)
    return naps


async def check_naps(payer: FlowNode, naps: list[str]) -> None:
    await all_ended(payer)
    for nap in naps:
        assert (await payer.result(nap))["value"] >= NAP_S
        assert payer.notes(nap) == ["awake"]


async def test_second_process_on_a_store_does_not_start(payer: FlowNode) -> None:
    """P5: whoever comes second does not start, even while the first one stands still."""
    id = await payer.begin("choice", "choose", "choice")
    await eventually(lambda: bool(payer.done_outside("choice")), "it waits")
    payer.signal(signal.SIGSTOP)
    second = FlowNode(PAYER, payer.directory, dsn=payer.dsn)
    await second.launch()
    try:
        assert await second.ends() == 1
    finally:
        await second.kill()
    payer.signal(signal.SIGCONT)
    assert await payer.operate("signal", id, "first", True)
    assert await payer.result("choice") == {"value": "first"}
    assert len(payer.done_outside("choice")) == 1


async def test_processes_that_take_over_leave_one_with_the_store(payer: FlowNode) -> None:
    """P5: killed the moment it has the store, or refused; one of them goes on with the flow."""
    id = await payer.begin("choice", "choose", "choice")
    await eventually(lambda: bool(payer.done_outside("choice")), "it waits")
    heirs = [FlowNode(PAYER, payer.directory, dsn=payer.dsn) for _ in range(3)]
    try:
        await heirs[0].launch("usual", kill_scenarios.CLAIMED, "-", "1")
        # The first one has it, so this one does not come that far.
        assert await heirs[0].ends() == 1
        await payer.kill()
        await heirs[0].launch("usual", kill_scenarios.CLAIMED, "-", "1")
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
