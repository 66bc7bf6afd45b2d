"""Search attributes of flows, which operators find them by."""

from __future__ import annotations

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.flows import FlowContext, FlowStatus, FlowView, SyncFlowContext, flow
from postroad.flows import admin as flow_admin
from tests.support.flows.nodes import FlowNode, FlowNodes


def charge(amount: int) -> int:
    if amount < 0:
        raise ValueError("no paper")
    return amount


@flow
async def pay(ctx: FlowContext, customer: str, amount: int) -> None:
    ctx.set_attributes(customer=customer, amount=amount, stage="charging")
    await ctx.step(charge, amount)
    ctx.set_attributes(stage=None, is_charged=True)
    await ctx.wait_for_signal("sent", bool)
    ctx.set_attributes(is_sent=True)


@flow
def pay_later(ctx: SyncFlowContext, customer: str) -> None:
    ctx.set_attributes(customer=customer)
    ctx.step(charge, 1)


@flow
async def plain(ctx: FlowContext) -> None:
    pass


async def found(node: FlowNode, *where: str, **filters: object) -> list[object]:
    """Amounts of the flows that meet conditions, the newest first."""
    views: list[FlowView] = await node.flows.admin.list(where=where, **filters)  # type: ignore[arg-type]
    return [view.attributes.get("amount") for view in views]


async def test_flows_are_found_by_their_attributes(
    nodes: FlowNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_admin, "_SEARCH_PAGE", 2)
    alpha = await nodes.start("alpha", pay, pay_later, plain)
    handles = [await alpha.begin(pay, ["ann", "bob"][amount % 2], amount) for amount in range(1, 6)]
    await alpha.run(plain)
    parked = await alpha.begin(pay, "ann", -1)
    await alpha.until(parked.id, FlowStatus.PARKED)
    for handle in handles:
        await alpha.until_steps(handle.id, 1)
    await alpha.run(pay_later, "ann")
    for _ in range(2):
        assert await found(alpha, "customer=ann") == [None, -1, 4, 2]
        assert await found(alpha, "customer=ann", "amount>=2") == [4, 2]
        assert await found(alpha, "amount>2", limit=2) == [5, 4]
        assert await found(alpha, "amount>2", before=handles[3].id) == [3]
        assert await found(alpha, "customer=ann", name="pay", status="parked") == [-1]
        assert await found(alpha, "stage=charging") == [-1]
        assert await found(alpha, "is_charged=true", "customer!=ann") == [5, 3, 1]
        assert await found(alpha, "customer=null") == [None]
        assert await found(alpha, "customer=nobody") == []
        await alpha.restart()
        await alpha.until(parked.id, FlowStatus.PARKED)
    with pytest.raises(ConfigError, match="where='customer' must be a name, one of"):
        await alpha.flows.admin.list(where=["customer"])
    shown = await alpha.flows.admin.show(parked.id)
    assert shown.attributes == {"customer": "ann", "amount": -1, "stage": "charging"}


async def test_attributes_are_kept_after_the_end_and_forked(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", pay, plain)
    handle = await alpha.begin(pay, "ann", 5)
    await alpha.until_steps(handle.id, 1)
    await alpha.flows.signal(handle.id, "sent", True)
    await alpha.result(handle.id)
    attributes = {"customer": "ann", "amount": 5, "is_charged": True, "is_sent": True}
    copy = await alpha.flows.admin.fork(handle.id, 1)
    await alpha.until_steps(copy, 1)
    assert (await alpha.flows.admin.show(handle.id)).attributes == attributes
    forked = await alpha.flows.admin.show(copy)
    assert forked.attributes == {"customer": "ann", "amount": 5, "is_charged": True}
    await alpha.restart()
    assert (await alpha.flows.admin.show(handle.id)).attributes == attributes


async def test_steps_set_no_attributes(nodes: FlowNodes) -> None:
    errors: list[str] = []

    @flow
    async def careless(ctx: FlowContext) -> None:
        def set_there() -> None:
            try:
                ctx.set_attributes(a=1)
            except UsageError as error:
                errors.append(str(error))

        await ctx.step(set_there)

    alpha, handle = await nodes.begin(careless)
    await alpha.result(handle.id)
    assert errors[0].startswith("ctx.set_attributes() belongs to the code of the flow")
    assert (await alpha.flows.admin.show(handle.id)).attributes == {}
