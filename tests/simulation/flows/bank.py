"""The flows of the simulated banks."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from datetime import datetime
from typing import Any
from zlib import crc32

import msgspec

from postroad.durable import RetryPolicy, Transaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowDefinition,
    FlowError,
    FlowSession,
    FlowTimeoutError,
    PeerFlowFailedError,
    SessionEndedError,
    SessionRejectedError,
    StepFailedError,
    StepId,
    flow,
    responder,
)
from tests.simulation.flows.orders import Order, Receipt, parts_of, payment_of

MOVES = (
    "CREATE TABLE IF NOT EXISTS moves (number INTEGER PRIMARY KEY AUTOINCREMENT,"
    " step_id TEXT, part TEXT, what TEXT, amount INTEGER)"
)
"""No key forbids what must not happen, so that it can be seen."""
INSERT = "INSERT INTO moves (step_id, part, what, amount) VALUES (?, ?, ?, ?)"

PATIENT = RetryPolicy(max_attempts=10_000, initial_delay_s=0.02, max_delay_s=0.5)
LIMIT_S = 0.5
_DAWDLING_S = 0.5


class Trouble(Exception):
    """What a step raises that fails for once."""


class Odd(Exception):
    """Neither what it says nor what it was made of can be written down."""

    def __str__(self) -> str:
        raise LookupError("no words")


async def move(
    part: str,
    what: str,
    amount: int,
    flaky: float,
    *,
    tx: Transaction = INJECTED,
    step_id: StepId = INJECTED,
) -> int:
    """Write down that money moves."""
    await tx.execute(INSERT, (step_id, part, what, amount))
    if random.random() < flaky:
        # Meanwhile others may say something to the flow.
        await asyncio.sleep(_DAWDLING_S * random.random())
    _stumble(flaky)
    return amount


async def reserve(part: str, *, tx: Transaction = INJECTED, step_id: StepId = INJECTED) -> None:
    """Hold the store for a while: whatever happens to the flow meanwhile comes before the step."""
    await tx.execute(INSERT, (step_id, part, "reserve", 0))
    await asyncio.sleep(_DAWDLING_S * random.random())


async def sell(
    part: str, price: int, *, tx: Transaction = INJECTED, step_id: StepId = INJECTED
) -> None:
    """Write a sale down, and read it in the same transaction."""
    await tx.execute(INSERT, (step_id, part, "credit", price))
    rows = await tx.execute("SELECT amount FROM moves WHERE part = ?", (part,))
    _expect((price,) in rows, True)


def charge(
    part: str,
    what: str,
    amount: int,
    flaky: float,
    *,
    connection: sqlite3.Connection = INJECTED,
    step_id: StepId = INJECTED,
) -> int:
    """The same for code that may block."""
    connection.execute(INSERT, (step_id, part, what, amount))
    _stumble(flaky)
    return amount


async def look_up(token: str, flaky: float) -> str:
    """Ask somebody who may take too long."""
    if random.random() < flaky:
        await asyncio.sleep(2 * LIMIT_S)
    return token.upper()


def count(number: int, flaky: float) -> int:
    """Compute something."""
    _stumble(flaky)
    return number + 1


def draw_number() -> int:
    """Another one whenever it is run."""
    return random.getrandbits(32)


def fail(text: str) -> None:
    """Never succeeds."""
    raise Trouble(text)


def fail_oddly(text: str) -> None:
    """The same with an error that cannot be made again."""
    raise Odd(text, connect)


def scribble(flaky: float) -> object:
    """Return something that cannot be written down, for once."""
    return connect if random.random() < flaky else "legible"


def connect(flaky: float) -> None:
    """Fails in a way that passes."""
    if random.random() < flaky:
        raise ConnectionError("for once")


def _stumble(flaky: float) -> None:
    if random.random() < flaky:
        raise Trouble("for once")


APPROVAL = "approval"
AMOUNT = "amount"
FEE = 1


class Refused(FlowError):
    """A payee wants none of it."""


class Wrong(Exception):
    """Something was said or computed that cannot be: a fault of what is tested."""


def _expect(actual: object, expected: object) -> None:
    if actual != expected:
        raise Wrong(f"got {actual!r}, and it is {expected!r}")


# A payment.


@flow
async def pay(ctx: FlowContext, order: Order) -> str:
    """The payer of two."""
    began = ctx.now()
    await _prepare(ctx, order)
    await _move(ctx, order, "debit", -order.amount)
    session = ctx.open_session(order.payee)
    ending = await _conclude(ctx, session, order)
    _check_time(ctx, began)
    return ending


async def _conclude(ctx: FlowContext, session: FlowSession, order: Order) -> str:
    """Talk to whoever takes the money, who may not want it."""
    try:
        receipt = await _talk(ctx, session, order)
    except PeerFlowFailedError:
        if not order.is_forgiving:
            raise
        await _move(ctx, order, "refund", order.amount)
        return "refused"
    _expect((receipt.order, receipt.lines), (order.name, order.lines))
    return await _sign(ctx, f"paid {receipt.amount}")


async def _sign(ctx: FlowContext, text: str) -> str:
    """Have an ending that no other attempt would have."""
    return f"{text} #{await ctx.step(draw_number)}"


async def _talk(ctx: FlowContext, session: FlowSession, order: Order) -> Receipt:
    await session.send(order)
    for number in range(order.lines):
        await session.send(number)
        if order.is_chatty:
            # The answer may come while this is written.
            await _move(ctx, order, "note", number)
            _expect(await session.receive(int), number + 1)
    return await session.receive(Receipt)


@responder(pay)
async def collect(ctx: FlowContext, session: FlowSession) -> str:
    """The payee of two."""
    return await _take(ctx, session, await session.receive(Order))


async def _take(ctx: FlowContext, session: FlowSession, order: Order) -> str:
    await _listen(session, order)
    if order.payee_rest_s:
        await ctx.sleep(order.payee_rest_s)
    if order.is_refused:
        raise Refused(f"{order.payee} wants none of {order.name}")
    await _move(ctx, order, "credit", order.amount)
    await session.send(Receipt(order.name, order.amount, order.lines))
    return f"collected {order.amount}"


async def _listen(session: FlowSession, order: Order) -> None:
    for number in range(order.lines):
        _expect(await session.receive(int), number)
        if order.is_chatty:
            await session.send(number + 1)


async def _move(ctx: FlowContext, order: Order, what: str, amount: int) -> None:
    moved: int = await ctx.step.with_options(retry=PATIENT)(
        move, order.name, what, amount, order.flaky
    )
    _expect(moved, amount)


async def _prepare(ctx: FlowContext, order: Order) -> None:
    """Do what has no effect, in all the ways there are."""
    if order.rest_s:
        await ctx.sleep(order.rest_s)
    if not order.is_odd:
        return
    ctx.set_progress("prepares")
    token = str(ctx.uuid())
    looked_up = ctx.step.with_options(timeout=LIMIT_S, retry=PATIENT)(look_up, token, order.flaky)
    counts = [
        ctx.step.with_options(retry=PATIENT)(count, number, order.flaky) for number in range(3)
    ]
    _expect(await ctx.gather(looked_up, *counts), [token.upper(), 1, 2, 3])
    try:
        await ctx.step(fail, token)
    except Trouble as error:
        _expect(str(error), token)
    try:
        await ctx.step(fail_oddly, token)
    except StepFailedError as error:
        _expect(error.kind.rpartition(":")[2], "Odd")
    quick, slow = ctx.random().uniform(0.0, 0.2), 1_000.0
    name, _ = await ctx.select(slow=_count_after(ctx, slow), quick=_count_after(ctx, quick))
    _expect(name, "quick")
    await ctx.step(connect, order.flaky)
    _expect(await ctx.step(scribble, order.flaky), "legible")


async def _count_after(ctx: FlowContext, seconds: float) -> int:
    before = ctx.now()
    await ctx.sleep(seconds)
    _check_time(ctx, before)
    return await ctx.step(count, 1, 0.0)


def _check_time(ctx: FlowContext, before: datetime) -> None:
    """Whatever becomes of the clock, time goes on for a flow."""
    if ctx.now() < before:
        raise Wrong("time went backwards")


# With a third party.


@flow
async def clear(ctx: FlowContext, order: Order) -> str:
    """The payer of three."""
    await _prepare(ctx, order)
    await _move(ctx, order, "debit", -order.amount)
    return await _conclude(ctx, ctx.open_session(order.third), order)


@responder(clear, concurrency=1)
async def clearing(ctx: FlowContext, session: FlowSession) -> str:
    """The one in the middle, who does one after the other."""
    order = await session.receive(Order)
    await _listen(session, order)
    onward = ctx.open_session(order.payee)
    receipt = await _talk(ctx, onward, order)
    await ctx.step.with_options(retry=PATIENT)(charge, order.name, "fee", FEE, order.flaky)
    await session.send(receipt)
    return f"cleared {receipt.amount}"


@responder(clearing)
async def settle(ctx: FlowContext, session: FlowSession) -> str:
    """The payee of three."""
    return await _take(ctx, session, await session.receive(Order))


# Several payments.


@flow
async def split(ctx: FlowContext, order: Order) -> str:
    """Pays two at the same time, by flows of their own or as parts of this one."""
    if not crc32(order.name.encode()) % 2:
        endings = await ctx.gather(*(ctx.run_subflow(pay, part) for part in parts_of(order)))
    else:
        children = [await ctx.start_child(pay, part) for part in parts_of(order)]
        endings = await ctx.gather(*(child.result() for child in children))
    return " + ".join(endings)


@flow(concurrency=2)
async def standing(ctx: FlowContext, order: Order) -> str:
    """Pays again and again, and forgets all about it each time."""
    if order.renewals:
        await ctx.run_subflow(pay, parts_of(order)[0])
        ctx.continue_as_new(msgspec.structs.replace(order, renewals=order.renewals - 1))
    return await _sign(ctx, "paid all")


# Waiting for others.


@flow
async def quote(ctx: FlowContext, order: Order) -> str:
    """Pays whoever answers first."""
    sessions = [ctx.open_session(order.payee), ctx.open_session(order.third)]
    await ctx.send_all(dict.fromkeys(sessions, order))
    name, _ = await ctx.select(
        payee=sessions[0].receive(int),
        third=sessions[1].receive(int),
        nobody=ctx.sleep(order.patience_s or 1_000.0),
    )
    chosen = {"payee": sessions[0], "third": sessions[1]}.get(name)
    if chosen is not None:
        await _move(ctx, order, "debit", -order.amount)
    for session in sessions:
        await session.send(session is chosen)
    if chosen is None:
        return "bought from nobody"
    receipt = await chosen.receive(Receipt)
    _expect(receipt, Receipt(order.name, order.amount, 0))
    return await _sign(ctx, f"bought from {name}")


@responder(quote)
async def offer(ctx: FlowContext, session: FlowSession) -> str:
    """Makes an offer."""
    order = await session.receive(Order)
    await ctx.sleep(ctx.random().uniform(0.0, 2.0) * order.payee_rest_s)
    price = await ctx.step.with_options(retry=PATIENT)(count, order.amount - 1, order.flaky)
    try:
        await session.send(price)
    except SessionEndedError:
        return "declined"
    if not await session.receive(bool):
        return "declined"
    await ctx.step(sell, order.name, price)
    await session.send(Receipt(order.name, price, 0))
    return f"sold for {price}"


@flow
async def approve(ctx: FlowContext, order: Order) -> str:
    """Pays when somebody says so."""
    ctx.set_query_handler(AMOUNT, lambda: order.amount)
    if order.rest_s:
        await ctx.sleep(order.rest_s)
    await ctx.step(reserve, order.name)
    try:
        is_approved = await ctx.wait_for_signal(APPROVAL, bool, timeout=order.patience_s)
    except FlowTimeoutError:
        return "forgotten"
    if not is_approved:
        return "disapproved"
    return await ctx.run_subflow(pay, order)


# What comes to nothing, and what nobody orders.


@flow(version=2)
async def lease(ctx: FlowContext, order: Order) -> str:
    """Pays somebody who cannot talk about it."""
    await _move(ctx, order, "debit", -order.amount)
    session = ctx.open_session(order.payee)
    try:
        await _talk(ctx, session, order)
    except SessionRejectedError:
        await _move(ctx, order, "refund", order.amount)
        return await _sign(ctx, "rejected")
    raise Wrong(f"{order.payee} talks about {order.name}")


@responder(lease, versions=[1])
async def let(ctx: FlowContext, session: FlowSession) -> None:
    """Never begins."""
    raise Wrong("it talks to a version that it does not know")


@flow(concurrency=1)
async def salary(ctx: FlowContext, order: Order) -> str:
    """Pays whenever it is time."""
    return await ctx.run_subflow(pay, payment_of(order, ctx.id))


INITIATORS = {
    definition.name: definition
    for definition in (pay, clear, split, standing, quote, approve, lease)
}
"""By the kind of the orders they are for."""
RESPONDERS = (collect, clearing, settle, offer, let)
ALL: tuple[FlowDefinition[Any, Any], ...] = (*INITIATORS.values(), salary, *RESPONDERS)
