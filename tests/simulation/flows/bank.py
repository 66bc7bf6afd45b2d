"""The flows of the simulated banks."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from datetime import datetime
from typing import Any

import msgspec

from postroad.durable import Retry, Transaction
from postroad.flows import (
    Definition,
    Flow,
    FlowError,
    FlowTimeout,
    PeerFailed,
    Session,
    SessionEnded,
    SessionRejected,
    StepFailed,
    flow,
    responds_to,
)
from tests.simulation.flows.orders import Order, Receipt, parts_of, payment_of

MOVES = (
    "CREATE TABLE IF NOT EXISTS moves (number INTEGER PRIMARY KEY AUTOINCREMENT,"
    " step_id TEXT, part TEXT, what TEXT, amount INTEGER)"
)
"""No key forbids what must not happen, so that it can be seen."""
INSERT = "INSERT INTO moves (step_id, part, what, amount) VALUES (?, ?, ?, ?)"

PATIENT = Retry(attempts=10_000, first_s=0.02, max_s=0.5)
LIMIT_S = 0.5
_DAWDLING_S = 0.5


class Trouble(Exception):
    """What a step raises that fails for once."""


class Odd(Exception):
    """Neither what it says nor what it was made of can be written down."""

    def __str__(self) -> str:
        raise LookupError("no words")


async def move(
    part: str, what: str, amount: int, flaky: float, *, tx: Transaction, step_id: str
) -> int:
    """Write down that money moves."""
    await tx.execute(INSERT, (step_id, part, what, amount))
    if random.random() < flaky:
        # Meanwhile others may say something to the flow.
        await asyncio.sleep(_DAWDLING_S * random.random())
    _stumble(flaky)
    return amount


async def reserve(part: str, *, tx: Transaction, step_id: str) -> None:
    """Hold the store for a while: whatever happens to the flow meanwhile comes before the step."""
    await tx.execute(INSERT, (step_id, part, "reserve", 0))
    await asyncio.sleep(_DAWDLING_S * random.random())


def charge(
    part: str, what: str, amount: int, flaky: float, *, connection: sqlite3.Connection, step_id: str
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


def _expect(given: object, wanted: object) -> None:
    if given != wanted:
        raise Wrong(f"got {given!r}, and it is {wanted!r}")


# A payment.


@flow
async def pay(flow: Flow, order: Order) -> str:
    """The payer of two."""
    began = flow.now()
    await _prepare(flow, order)
    await _move(flow, order, "debit", -order.amount)
    session = flow.open(order.payee)
    ending = await _conclude(flow, session, order)
    _check_time(flow, began)
    return ending


async def _conclude(flow: Flow, session: Session, order: Order) -> str:
    """Talk to whoever takes the money, who may not want it."""
    try:
        receipt = await _talk(flow, session, order)
    except PeerFailed:
        if not order.is_forgiving:
            raise
        await _move(flow, order, "refund", order.amount)
        return "refused"
    _expect((receipt.order, receipt.lines), (order.name, order.lines))
    return await _sign(flow, f"paid {receipt.amount}")


async def _sign(flow: Flow, text: str) -> str:
    """Have an ending that no other attempt would have."""
    return f"{text} #{await flow.step(draw_number)}"


async def _talk(flow: Flow, session: Session, order: Order) -> Receipt:
    await session.send(order)
    for number in range(order.lines):
        await session.send(number)
        if order.is_chatty:
            # The answer may come while this is written.
            await _move(flow, order, "note", number)
            _expect(await session.receive(int), number + 1)
    return await session.receive(Receipt)


@responds_to(pay)
async def collect(flow: Flow, session: Session) -> str:
    """The payee of two."""
    return await _take(flow, session, await session.receive(Order))


async def _take(flow: Flow, session: Session, order: Order) -> str:
    await _listen(session, order)
    if order.payee_rest_s:
        await flow.sleep(order.payee_rest_s)
    if order.is_refused:
        raise Refused(f"{order.payee} wants none of {order.name}")
    await _move(flow, order, "credit", order.amount)
    await session.send(Receipt(order.name, order.amount, order.lines))
    return f"collected {order.amount}"


async def _listen(session: Session, order: Order) -> None:
    for number in range(order.lines):
        _expect(await session.receive(int), number)
        if order.is_chatty:
            await session.send(number + 1)


async def _move(flow: Flow, order: Order, what: str, amount: int) -> None:
    moved: int = await flow.step(move, order.name, what, amount, order.flaky, retry=PATIENT)
    _expect(moved, amount)


async def _prepare(flow: Flow, order: Order) -> None:
    """Do what has no effect, in all the ways there are."""
    if order.rest_s:
        await flow.sleep(order.rest_s)
    if not order.is_odd:
        return
    flow.progress("prepares")
    token = str(flow.uuid())
    looked_up = flow.step(look_up, token, order.flaky, timeout=LIMIT_S, retry=PATIENT)
    counts = [flow.step(count, number, order.flaky, retry=PATIENT) for number in range(3)]
    _expect(await flow.gather(looked_up, *counts), [token.upper(), 1, 2, 3])
    try:
        await flow.step(fail, token)
    except Trouble as error:
        _expect(str(error), token)
    try:
        await flow.step(fail_oddly, token)
    except StepFailed as error:
        _expect(error.kind.rpartition(":")[2], "Odd")
    quick, slow = flow.random().uniform(0.0, 0.2), 1_000.0
    name, _ = await flow.select(slow=_count_after(flow, slow), quick=_count_after(flow, quick))
    _expect(name, "quick")
    await flow.step(connect, order.flaky)
    _expect(await flow.step(scribble, order.flaky), "legible")


async def _count_after(flow: Flow, seconds: float) -> int:
    before = flow.now()
    await flow.sleep(seconds)
    _check_time(flow, before)
    return await flow.step(count, 1, 0.0)


def _check_time(flow: Flow, before: datetime) -> None:
    """Whatever becomes of the clock, time goes on for a flow."""
    if flow.now() < before:
        raise Wrong("time went backwards")


# With a third party.


@flow
async def clear(flow: Flow, order: Order) -> str:
    """The payer of three."""
    await _prepare(flow, order)
    await _move(flow, order, "debit", -order.amount)
    return await _conclude(flow, flow.open(order.third), order)


@responds_to(clear, concurrency=1)
async def clearing(flow: Flow, session: Session) -> str:
    """The one in the middle, who does one after the other."""
    order = await session.receive(Order)
    await _listen(session, order)
    onward = flow.open(order.payee)
    receipt = await _talk(flow, onward, order)
    await flow.step(charge, order.name, "fee", FEE, order.flaky, retry=PATIENT)
    await session.send(receipt)
    return f"cleared {receipt.amount}"


@responds_to(clearing)
async def settle(flow: Flow, session: Session) -> str:
    """The payee of three."""
    return await _take(flow, session, await session.receive(Order))


# Several payments.


@flow
async def split(flow: Flow, order: Order) -> str:
    """Pays two at the same time."""
    return " + ".join(await flow.gather(*(flow.call(pay, part) for part in parts_of(order))))


@flow(concurrency=2)
async def standing(flow: Flow, order: Order) -> str:
    """Pays again and again, and forgets all about it each time."""
    if order.left:
        await flow.call(pay, parts_of(order)[0])
        flow.continue_as_new(msgspec.structs.replace(order, left=order.left - 1))
    return await _sign(flow, "paid all")


# Waiting for others.


@flow
async def quote(flow: Flow, order: Order) -> str:
    """Pays whoever answers first."""
    sessions = [flow.open(order.payee), flow.open(order.third)]
    await flow.send_all(dict.fromkeys(sessions, order))
    name, _ = await flow.select(
        payee=sessions[0].receive(int),
        third=sessions[1].receive(int),
        nobody=flow.sleep(order.patience_s or 1_000.0),
    )
    chosen = {"payee": sessions[0], "third": sessions[1]}.get(name)
    if chosen is not None:
        await _move(flow, order, "debit", -order.amount)
    for session in sessions:
        await session.send(session is chosen)
    if chosen is None:
        return "bought from nobody"
    receipt = await chosen.receive(Receipt)
    _expect(receipt, Receipt(order.name, order.amount, 0))
    return await _sign(flow, f"bought from {name}")


@responds_to(quote)
async def offer(flow: Flow, session: Session) -> str:
    """Makes an offer."""
    order = await session.receive(Order)
    await flow.sleep(flow.random().uniform(0.0, 2.0) * order.payee_rest_s)
    price = await flow.step(count, order.amount - 1, order.flaky, retry=PATIENT)
    try:
        await session.send(price)
    except SessionEnded:
        return "declined"
    if not await session.receive(bool):
        return "declined"
    async with flow.transaction() as tx:
        await tx.execute(INSERT, (f"{flow.id}/sale", order.name, "credit", price))
        rows = await tx.execute("SELECT amount FROM moves WHERE part = ?", (order.name,))
        _expect((price,) in rows, True)
    await session.send(Receipt(order.name, price, 0))
    return f"sold for {price}"


@flow
async def approve(flow: Flow, order: Order) -> str:
    """Pays when somebody says so."""
    flow.answer(AMOUNT, lambda: order.amount)
    if order.rest_s:
        await flow.sleep(order.rest_s)
    await flow.step(reserve, order.name)
    try:
        is_approved = await flow.signal(APPROVAL, bool, timeout=order.patience_s)
    except FlowTimeout:
        return "forgotten"
    if not is_approved:
        return "disapproved"
    return await flow.call(pay, order)


# What comes to nothing, and what nobody orders.


@flow(version=2)
async def lease(flow: Flow, order: Order) -> str:
    """Pays somebody who cannot talk about it."""
    await _move(flow, order, "debit", -order.amount)
    session = flow.open(order.payee)
    try:
        await _talk(flow, session, order)
    except SessionRejected:
        await _move(flow, order, "refund", order.amount)
        return await _sign(flow, "rejected")
    raise Wrong(f"{order.payee} talks about {order.name}")


@responds_to(lease, versions=[1])
async def let(flow: Flow, session: Session) -> None:
    """Never begins."""
    raise Wrong("it talks to a version that it does not know")


@flow(concurrency=1)
async def salary(flow: Flow, order: Order) -> str:
    """Pays whenever it is time."""
    return await flow.call(pay, payment_of(order, flow.id))


INITIATORS = {it.name: it for it in (pay, clear, split, standing, quote, approve, lease)}
"""By the kind of the orders they are for."""
RESPONDERS = (collect, clearing, settle, offer, let)
ALL: tuple[Definition[Any, Any], ...] = (*INITIATORS.values(), salary, *RESPONDERS)
