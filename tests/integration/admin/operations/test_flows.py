"""Operations on flows, of a node that runs and of one at rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.admin.errors import InvalidRequest, NotFound, ProgramFailed
from postroad.admin.operations import at_rest
from postroad.core.errors import UsageError
from postroad.flows import (
    DrainingError,
    FlowNotFoundError,
    FlowStatus,
    ScheduleNotFoundError,
    WrongSignalError,
)

from .operating import Operator, calculate, operated


async def until_done(operator: Operator, id: str) -> None:
    await operator.until(lambda it: it.status is FlowStatus.COMPLETED, "flow.show", id=id)


async def test_a_flow_is_begun_looked_at_and_signalled(operator: Operator) -> None:
    begun = await operator.do(
        "flow.begin", flow="calculate", arguments={"number": 3, "wait": True}, client_id="mine"
    )
    again = await operator.do("flow.begin", flow="calculate", arguments={}, client_id="mine")
    assert again.id == begun.id
    await operator.until(lambda it: len(it) == 1, "flow.history", id=begun.id)
    answer = await operator.do("flow.query", id=begun.id, name="doubled")
    assert answer.value == 6
    with pytest.raises(ProgramFailed, match="raised ZeroDivisionError"):
        await operator.do("flow.query", id=begun.id, name="broken")
    shown = await operator.until(lambda it: it.waits_for, "flow.show", id=begun.id)
    assert (shown.waits_for, shown.result, shown.forked_from) == (["signal more"], None, None)
    assert (await operator.do("flow.pause", id=begun.id)).status is FlowStatus.PAUSED
    assert (await operator.do("flow.resume", id=begun.id)).status is FlowStatus.RUNNING
    with pytest.raises(WrongSignalError, match="waits for no signal 'moree'; did you mean 'more'"):
        await operator.do("flow.signal", id=begun.id, name="moree", value=4)
    with pytest.raises(WrongSignalError, match="Expected `int`, got `str`"):
        await operator.do("flow.signal", id=begun.id, name="more", value="abc")
    await operator.do("flow.signal", id=begun.id, name="more", value=4)
    await until_done(operator, begun.id)
    steps = await operator.do("flow.history", id="mine")
    assert [(it.number, it.name, it.value) for it in steps if it.name == "double"] == [
        (0, "double", 6),
        (2, "double", 20),
    ]
    shown = await operator.do("flow.show", id="mine")
    assert (shown.id, shown.result, shown.waits_for) == (begun.id, 20, [])
    assert shown.arguments == {"number": 3, "wait": True}
    fork = await operator.do("flow.fork", id=begun.id, step=1)
    assert (fork.forked_from, fork.forked_step) == (begun.id, 1)
    assert fork.started_at >= shown.ended_at
    killed = await operator.do("flow.kill", id=fork.id, reason="a test")
    assert (killed.status, killed.error) == (FlowStatus.KILLED, "FlowKilledError: a test")


async def test_flows_are_listed_and_counted(operator: Operator) -> None:
    done = await operator.do("flow.begin", flow="calculate", arguments={"number": 1})
    await until_done(operator, done.id)
    failed = await operator.do("flow.begin", flow="refuse")
    parked = await operator.do("flow.begin", flow="stumble")
    await operator.until(lambda it: it.status is FlowStatus.PARKED, "flow.show", id=parked.id)
    await operator.until(lambda it: it.status is FlowStatus.FAILED, "flow.show", id=failed.id)
    logged = [it.text for it in await operator.do("node.logs") if it.logger == "postroad.flows"]
    assert any(f"flow {parked.id} of stumble is parked at" in it for it in logged)
    counts = await operator.do("flow.counts")
    assert counts.statuses == {"done": 1, "failed": 1, "parked": 1}
    assert [it.id for it in await operator.do("flow.ls")] == [parked.id, failed.id, done.id]
    assert [it.id for it in await operator.do("flow.ls", status="failed")] == [failed.id]
    assert [it.id for it in await operator.do("flow.ls", name="calculate")] == [done.id]
    assert [it.id for it in await operator.do("flow.ls", before=failed.id)] == [done.id]
    assert len(await operator.do("flow.ls", limit=2)) == 2
    assert (await operator.do("flow.retry", id=parked.id)).name == "stumble"


async def test_what_does_not_exist_is_told(operator: Operator) -> None:
    with pytest.raises(NotFound, match="no flow 'calkulate'; did you mean 'calculate'"):
        await operator.do("flow.begin", flow="calkulate")
    with pytest.raises(InvalidRequest, match="`number` is missing"):
        await operator.do("flow.begin", flow="calculate")
    with pytest.raises(FlowNotFoundError):
        await operator.do("flow.show", id="0123456789abcdef")
    with pytest.raises(FlowNotFoundError):
        await operator.do("flow.show", id="nobody")
    with pytest.raises(ScheduleNotFoundError):
        await operator.do("flow.pause-schedule", name="daily")


async def test_definitions_tell_what_flows_take(operator: Operator) -> None:
    begun = await operator.do("flow.begin", flow="calculate", arguments={"number": 1, "wait": True})
    definitions = {it.name: it for it in await operator.do("flow.definitions")}
    assert [*definitions] == ["calculate", "refuse", "respond", "stumble"]
    it = definitions["calculate"]
    assert it.description.startswith("Doubles a number.")
    assert it.running == 1
    assert it.parameters is not None
    assert it.parameters["required"] == ["number"]
    assert it.parameters["properties"]["wait"] == {"type": "boolean", "default": False}
    assert definitions["stumble"].concurrency == 1
    assert (definitions["respond"].responds_to, definitions["respond"].parameters) == (
        "elsewhere",
        None,
    )
    await operator.do("flow.kill", id=begun.id)


async def test_a_node_that_drains_begins_no_flows(operator: Operator) -> None:
    assert (await operator.do("flow.drain", timeout_s=1)).left == 0
    assert (await operator.do("flow.counts")).is_draining
    with pytest.raises(DrainingError):
        await operator.do("flow.begin", flow="refuse")
    assert not (await operator.do("flow.undrain")).is_draining
    await operator.do("flow.begin", flow="refuse")


async def test_schedules(operator: Operator) -> None:
    await operator.office.node.flows.schedules.create("daily", "@daily", calculate, 4)
    (schedule,) = await operator.do("flow.schedules")
    assert (schedule.name, schedule.flow, schedule.arguments) == ("daily", "calculate", [4])
    assert (await operator.do("flow.pause-schedule", name="daily")).is_paused
    begun = await operator.do("flow.run-schedule", name="daily")
    await until_done(operator, begun.id)
    assert not (await operator.do("flow.resume-schedule", name="daily")).is_paused
    assert await operator.do("flow.unschedule", name="daily") == []


async def test_the_flows_of_a_node_at_rest(tmp_path: Path) -> None:
    async with operated(tmp_path) as operator:
        arguments = {"number": 1, "wait": True}
        waiting = await operator.do(
            "flow.begin", flow="calculate", arguments=arguments, client_id="mine"
        )
        parked = await operator.do("flow.begin", flow="stumble")
        await operator.until(lambda it: it.status is FlowStatus.PARKED, "flow.show", id=parked.id)
        await operator.until(lambda it: len(it) == 1, "flow.history", id=waiting.id)
    store = str(tmp_path / "alpha.db")
    async with at_rest(store, can_change=False) as office:
        resting = Operator(office)
        assert (await resting.do("flow.counts")).statuses == {"running": 1, "parked": 1}
        assert (await resting.do("flow.show", id="mine")).id == waiting.id
        assert len(await resting.do("flow.history", id="mine")) == 1
        assert [it.id for it in await resting.do("flow.ls", status="parked")] == [parked.id]
        (hit,) = await resting.do("search.find", text=parked.id)
        assert (hit.kind, hit.id) == ("flow", parked.id)
        with pytest.raises(UsageError):
            await resting.do("flow.kill", id=parked.id)
    async with at_rest(store, can_change=True) as office:
        resting = Operator(office)
        await resting.do("flow.signal", id=waiting.id, name="more", value=1)
        assert (await resting.do("flow.kill", id=parked.id)).status is FlowStatus.KILLED
        for operation in ("flow.definitions", "flow.schedules", "flow.drain"):
            with pytest.raises(UsageError, match="needs a running node"):
                await resting.do(operation)
    async with operated(tmp_path) as operator:
        await until_done(operator, waiting.id)


async def test_a_store_that_never_had_flows(tmp_path: Path) -> None:
    layers = {"layers": ["cluster", "queues"]}
    from postroad.node import App

    async with operated(tmp_path, app=App(), node=layers) as operator:
        await operator.do("queue.post", queue="letters", body="hi")
    async with at_rest(str(tmp_path / "alpha.db"), can_change=False) as office:
        resting = Operator(office)
        assert (await resting.do("flow.counts")).statuses == {}
        assert await resting.do("flow.ls") == []
        assert await resting.do("search.find", text="0123456789abcdef") == []


async def test_arguments_that_do_not_fit_begin_nothing(operator: Operator) -> None:
    for arguments, told in (
        ({"number": "x"}, "number: Expected `int`, got `str`"),
        ({}, "`number` is missing"),
        ({"number": 1, "waits": True}, r"no parameter is called 'waits'; did you mean 'wait'\?"),
    ):
        with pytest.raises(InvalidRequest, match=rf"cannot begin with these arguments: .*{told}"):
            await operator.do("flow.begin", flow="calculate", arguments=arguments)
    assert await operator.do("flow.ls") == []


async def test_a_flow_that_has_ended_can_only_be_forked(operator: Operator) -> None:
    done = await operator.do("flow.begin", flow="calculate", arguments={"number": 1})
    await until_done(operator, done.id)
    with pytest.raises(UsageError, match=rf"`postroad flow fork {done.id} STEP` begins it anew"):
        await operator.do("flow.retry", id=done.id)
