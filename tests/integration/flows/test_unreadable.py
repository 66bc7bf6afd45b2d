"""One flow that this version cannot read: it is left alone and reported, and all others go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows import FlowContext, FlowStatus, NondeterminismError, flow
from postroad.flows.machine.history import CommandKind
from postroad.flows.machine.state import parse_flow_id
from tests.support.deadlines import DEADLINE_S
from tests.support.flows.nodes import FlowNode, FlowNodes

calls: list[str] = []


def charge(order: str) -> str:
    calls.append(order)
    return order


@flow
async def order(ctx: FlowContext, name: str) -> str:
    await ctx.step(charge, name)
    return await ctx.wait_for_signal("go", str) + await ctx.wait_for_signal("later", str)


async def change(node: FlowNode, statement: str, *parameters: Any) -> None:
    """What a newer version, or a bad disk, does to the store."""

    def write(ledger: StoreTables) -> None:
        ledger.database.execute(statement, parameters)

    await node.station.mail.store.write(write)


async def begin_two(nodes: FlowNodes) -> tuple[FlowNode, str, str]:
    calls.clear()
    alpha = await nodes.start("alpha", order)
    odd, other = await alpha.begin(order, "odd"), await alpha.begin(order, "other")
    for handle in (odd, other):
        await alpha.until_steps(handle.id, 1)
    await alpha.stop_flows()
    return alpha, odd.id, other.id


@pytest.mark.parametrize("damage", ["status = 'frozen'", "head = ?"])
async def test_a_head_that_cannot_be_read_stops_no_other_flow(
    nodes: FlowNodes, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    alpha, odd, other = await begin_two(nodes)
    parameters = (b"\x81\xa6status\xa6frozen",) if "?" in damage else ()
    before = await alpha.rows("SELECT id, wake_ms FROM postroad_flows ORDER BY id")
    await change(
        alpha, f"UPDATE postroad_flows SET {damage} WHERE id = ?", *parameters, parse_flow_id(odd)
    )
    await alpha.start_flows()
    await alpha.flows.signal(other, "go", "o")
    await alpha.flows.signal(other, "later", "n")
    assert await alpha.result(other) == "on"
    shown = await alpha.flows.admin.show(odd)
    assert (shown.status, shown.name) == (FlowStatus.UNREADABLE, "order")
    assert "newer version of Postroad" in str(shown.error)
    assert [view.status for view in await alpha.flows.admin.list() if view.id == odd] == [
        FlowStatus.UNREADABLE
    ]
    flows = alpha.flows
    attempts: list[Callable[[], Any]] = [
        lambda: flows.signal(odd, "go", "x"),
        lambda: flows.admin.retry(odd),
        lambda: flows.admin.pause(odd),
        lambda: flows.admin.kill(odd),
        lambda: flows.admin.fork(odd, 0),
        lambda: flows.query(odd, "x"),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError, match=r"unreadable|newer version"):
            async with asyncio.timeout(DEADLINE_S):
                await attempt()
    with pytest.raises(NondeterminismError, match="newer version"):
        await (await flows.get_handle(odd)).result(DEADLINE_S)
    if "status" in damage:
        assert (await flows.admin.counts())[FlowStatus.UNREADABLE] == 1
        assert [view.id for view in await flows.admin.list(FlowStatus.UNREADABLE)] == [odd]
        assert [
            record.levelno for record in caplog.records if "does not know" in record.message
        ] == [logging.ERROR]
    # Nobody has touched it, and a version that knows it goes on.
    assert (parse_flow_id(odd), before[0][1]) in await alpha.rows(
        "SELECT id, wake_ms FROM postroad_flows"
    )
    assert await alpha.rows("SELECT count(*) FROM postroad_flow_mail") == [(0,)]
    assert calls == ["odd", "other"]


async def test_a_step_that_cannot_be_read_parks_its_flow_and_runs_nothing_again(
    nodes: FlowNodes,
) -> None:
    alpha, odd, other = await begin_two(nodes)
    ((record,),) = await alpha.rows(
        f"SELECT record FROM postroad_flow_steps WHERE flow = {parse_flow_id(odd)}"
    )
    newer = bytes(record).replace(CommandKind.STEP.value.encode(), b"leap")
    await change(
        alpha, "UPDATE postroad_flow_steps SET record = ? WHERE flow = ?", newer, parse_flow_id(odd)
    )
    for _ in range(2):
        await alpha.start_flows()
        with pytest.raises(UsageError, match="another version of Postroad"):
            async with asyncio.timeout(DEADLINE_S):
                await alpha.flows.admin.retry(odd)
        with pytest.raises(NondeterminismError, match="another version of Postroad"):
            await alpha.flows.admin.history(odd)
        assert (await alpha.flows.admin.show(other)).status is FlowStatus.RUNNING
        await alpha.stop_flows()
    assert calls == ["odd", "other"]
    await alpha.start_flows()
    await alpha.flows.signal(other, "go", "o")
    await alpha.flows.signal(other, "later", "n")
    assert await alpha.result(other) == "on"
    await alpha.flows.admin.kill(odd)
    assert (await alpha.flows.admin.show(odd)).status is FlowStatus.KILLED


async def test_a_signal_to_a_flow_that_is_not_in_the_store_any_more_is_refused(
    nodes: FlowNodes,
) -> None:
    alpha = await nodes.start("alpha", order)
    handle = await alpha.begin(order, "lost")
    await alpha.until_steps(handle.id, 1)
    # An older copy of the database was put in its place, and the flow is still in memory.
    await change(alpha, "DELETE FROM postroad_flows WHERE id = ?", parse_flow_id(handle.id))
    for _ in range(2):
        with pytest.raises(Exception, match=r"not in the store any more|not known here|no flow"):
            await alpha.flows.signal(handle.id, "later", "x")
    assert await alpha.rows("SELECT count(*) FROM postroad_flow_mail") == [(0,)]


async def test_a_schedule_that_cannot_be_read_keeps_no_other_from_being_served(
    nodes: FlowNodes, caplog: pytest.LogCaptureFixture
) -> None:
    alpha = await nodes.start("alpha", order)
    for name in ("odd", "other"):
        await alpha.flows.schedules.create(name, "* * * * *", order, name, catch_up="all")
    await alpha.stop_flows()
    await change(alpha, "UPDATE postroad_flow_schedules SET next_ms = next_ms - 60000")
    await change(alpha, "UPDATE postroad_flow_schedules SET catch_up = 'some' WHERE name = 'odd'")
    await alpha.start_flows()
    await alpha.until_listed("order")
    assert [schedule.name for schedule in await alpha.flows.schedules.list()] == ["other"]
    with pytest.raises(NondeterminismError, match="newer version of Postroad: catch_up='some'"):
        await alpha.flows.schedules.pause("odd")
    assert "schedule 'odd' was written by a newer version" in caplog.text
