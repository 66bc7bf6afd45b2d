"""What a flow keeps has a limit, and what is kept too long is forgotten whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroad.core.errors import StoreUnavailableError
from postroad.durable import MemoryDisk, MemoryStore, Store, Transaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowError,
    FlowHandle,
    FlowsConfig,
    FlowStatus,
    SerializationError,
    SignalBufferFullError,
    flow,
    service,
)
from postroad.flows.engine import retention, step_executor, tables
from postroad.flows.machine.values import FLOW_VALUE_BYTES_MAX
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.flows.nodes import FlowNodes


async def test_unread_signals_beyond_size_limit_are_rejected(nodes: FlowNodes) -> None:
    @flow
    async def hoard(ctx: FlowContext) -> int:
        await ctx.wait_for_signal("go", bool)
        return len(await ctx.wait_for_signal("blob", bytes)) + len(
            await ctx.wait_for_signal("blob", bytes)
        )

    alpha = await nodes.start("alpha", hoard, signal_buffer_bytes_max=1_000)
    handle = await alpha.begin(hoard)
    for _ in range(2):
        await alpha.flows.signal(handle.id, "blob", bytes(400))
    await alpha.restart_flows()
    with pytest.raises(SignalBufferFullError, match="bytes are buffered of 1000"):
        await alpha.flows.signal(handle.id, "blob", bytes(400))
    with pytest.raises(SerializationError, match="'blob' takes 16777221 bytes"):
        await alpha.flows.signal(handle.id, "blob", bytes(FLOW_VALUE_BYTES_MAX))
    # What was refused has left nothing behind, and what the code waits for is not counted.
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == 800


# What a flow may write down.


async def test_values_that_are_too_large_are_refused_and_not_kept(nodes: FlowNodes) -> None:
    too_much = FLOW_VALUE_BYTES_MAX + 1

    def make(size: int) -> bytes:
        return bytes(size)

    @flow
    async def returns(ctx: FlowContext, argument: bytes) -> bytes:
        return await ctx.step(make, 8) * (too_much // 8 + 1)

    @flow
    async def steps(ctx: FlowContext) -> int:
        return len(await ctx.step(make, too_much))

    alpha = await nodes.start("alpha", returns, steps)
    with pytest.raises(SerializationError, match="an argument of flow 'returns' takes"):
        await alpha.begin(returns, bytes(too_much))
    begun: list[FlowHandle[Any]] = [await alpha.begin(returns, b""), await alpha.begin(steps)]
    for handle in begun:
        parked = await alpha.until(handle.id, FlowStatus.PARKED)
        assert f"and {FLOW_VALUE_BYTES_MAX} is the limit" in str(parked.error)
        is_recorded = handle.name == "returns"
        assert len(await alpha.flows.admin.history(handle.id)) == int(is_recorded)
    ((largest,),) = await alpha.rows("SELECT max(length(head)) FROM postroad_flows")
    assert largest < 100_000


async def test_error_with_large_argument_is_recorded_without_it(nodes: FlowNodes) -> None:
    def fail() -> None:
        raise FlowError("x" * 10_000_000)

    @flow
    async def catches(ctx: FlowContext) -> int:
        try:
            await ctx.step(fail)
        except FlowError as error:
            ctx.set_progress("y" * 10_000_000)
            return len(str(error))
        return 0

    alpha = await nodes.start("alpha", catches)
    assert await alpha.run(catches) == 2_000
    ((largest,),) = await alpha.rows("SELECT max(length(record)) FROM postroad_flow_steps")
    ((head,),) = await alpha.rows("SELECT max(length(head)) FROM postroad_flows")
    assert largest < 10_000 > head


async def test_a_flow_that_does_too_much_is_parked_until_more_is_allowed(nodes: FlowNodes) -> None:
    done: list[int] = []

    def do(number: int) -> bytes:
        done.append(number)
        return bytes(100)

    @flow
    async def works(ctx: FlowContext) -> int:
        for number in range(20):
            await ctx.step(do, number)
        return len(done)

    choices: list[dict[str, Any]] = [{"history_steps_max": 10}, {"history_bytes_max": 1_000}]
    for bounds in choices:
        done.clear()
        name = "beta" if "history_bytes_max" in bounds else "alpha"
        node = await nodes.start(name, works, **bounds)
        handle = await node.begin(works)
        parked = await node.until(handle.id, FlowStatus.PARKED)
        assert "the history of flow works has" in str(parked.error)
        assert "ctx.continue_as_new" in str(parked.error)
        ran = len(done)
        assert 9 <= ran <= 11
        # To try it again changes nothing, neither now nor at the next start.
        await node.flows.admin.retry(handle.id)
        await node.until(handle.id, FlowStatus.PARKED)
        await node.restart_flows()
        await node.until(handle.id, FlowStatus.PARKED)
        assert len(done) == ran
        node.config = FlowsConfig()
        await node.restart_flows()
        assert await node.result(handle.id) == 20


# Functions that do not end.


async def test_a_step_that_swallows_its_cancellation_does_not_keep_flows_from_stopping(
    nodes: FlowNodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(step_executor, "STOP_S", 0.05)
    is_free, has_begun, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        has_begun.set()
        while not is_free.is_set():
            try:
                await is_free.wait()
            except asyncio.CancelledError:
                continue
        has_ended.set()

    @flow
    async def stuck(ctx: FlowContext) -> None:
        await ctx.step(stubborn)

    alpha = await nodes.start("alpha", stuck)
    await alpha.begin(stuck)
    await has_begun.wait()
    async with asyncio.timeout(DEADLINE_S):
        await alpha.stop_flows()
    assert "are abandoned: postroad step" in caplog.text
    is_free.set()
    await has_ended.wait()


async def test_a_step_in_a_transaction_that_swallows_its_cancellation_keeps_no_operator_waiting(
    nodes: FlowNodes,
) -> None:
    is_free, has_begun = asyncio.Event(), asyncio.Event()

    async def stubborn(tx: Transaction = INJECTED) -> None:
        await tx.execute("SELECT 1")
        has_begun.set()
        while not is_free.is_set():
            try:
                await is_free.wait()
            except asyncio.CancelledError:
                continue

    @flow
    async def stuck(ctx: FlowContext) -> None:
        await ctx.step(stubborn)

    alpha = await nodes.start("alpha", stuck)
    handle = await alpha.begin(stuck)
    await has_begun.wait()
    async with asyncio.timeout(5):
        await alpha.flows.admin.kill(handle.id)
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.KILLED
    is_free.set()


# Stores that are away for a while.


async def test_expired_flows_are_purged_after_store_outage(
    nodes: FlowNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    @flow
    async def short(ctx: FlowContext) -> int:
        return 1

    monkeypatch.setattr(service, "_PURGE_INTERVAL_S", 0.01)
    disk = MemoryDisk()
    alpha = await nodes.start("alpha", short, make_store=lambda: MemoryStore(disk), retention_s=0.2)
    handles = [await alpha.begin(short) for _ in range(20)]
    for handle in handles:
        assert await alpha.result(handle.id) == 1
    failed: list[Exception] = []
    purge_expired = retention.purge_expired

    async def spied(store: Store, config: FlowsConfig) -> None:
        try:
            await purge_expired(store, config)
        except Exception as error:
            failed.append(error)
            raise

    monkeypatch.setattr("postroad.flows.service.purge_expired", spied)
    disk.is_read_only = True
    await eventually(lambda: bool(failed), "the store was away when something was to be forgotten")
    disk.is_read_only = False

    async def are_forgotten() -> bool:
        return not await alpha.flows.admin.list()

    await eventually(are_forgotten, "all of them are forgotten")


async def test_queued_flows_start_after_store_outage(
    nodes: FlowNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    @flow(concurrency=1)
    async def single(ctx: FlowContext) -> int:
        return await ctx.wait_for_signal("go", int)

    alpha = await nodes.start("alpha", single)
    first, second = await alpha.begin(single), await alpha.begin(single)
    store = alpha.station.mail.store
    read, failures = store.read, iter(range(3))

    async def flaky(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function is tables.list_by_status and next(failures, None) is not None:
            raise StoreUnavailableError("the server restarts")
        return await read(function, *args, **kwargs)

    monkeypatch.setattr(store, "read", flaky)
    await alpha.flows.signal(first.id, "go", 1)
    await alpha.until(second.id, FlowStatus.RUNNING)
    assert next(failures, None) is None
    await alpha.flows.signal(second.id, "go", 2)
    assert await alpha.result(second.id) == 2
