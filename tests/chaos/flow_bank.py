"""The flows of a bank, as the processes of the chaos tests run them.

What they do in the store is in two tables: `moves` of money, and `notes`. What they do outside of
it is in a file beside the store, with a line for each time that it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from postroad.durable import Transaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowSession,
    StepId,
    flow,
    responder,
)
from postroad.flows.errors import (
    FlowCancelledError,
    FlowError,
    PeerFlowFailedError,
    SessionEndedError,
)
from tests.support.durable.mail_node import execute

TABLES = {
    "moves": "payment TEXT NOT NULL, cents INTEGER NOT NULL, step_id TEXT NOT NULL",
    "notes": "subject TEXT NOT NULL, text TEXT NOT NULL",
}
MOVE = "INSERT INTO moves (payment, cents, step_id) VALUES (?, ?, ?)"
NOTE = "INSERT INTO notes (subject, text) VALUES (?, ?)"
CENTS_MAX = 10_000
"""A bank takes no more at once."""
LINES = 6
BRANCHES = 4
AILING = "the line was down"


class Outside:
    """The world outside of the store: a file that only grows."""

    path = Path("outside.txt")

    @classmethod
    def write(cls, subject: str, what: str, step_id: str) -> int:
        """Do something there that cannot be undone; how often it was done before."""
        line = f"{subject} {what} {step_id}\n"
        with cls.path.open("a+") as file:
            file.seek(0)
            before = file.read().count(line)
            file.write(line)
        return before


class Order(msgspec.Struct, frozen=True):
    """What one bank sends to another."""

    payment: str
    cents: int


# Functions of steps.


async def move(
    payment: str, cents: int, *, tx: Transaction = INJECTED, step_id: StepId = INJECTED
) -> None:
    await execute(tx, MOVE, payment, cents, step_id)


async def move_parts(
    payment: str, cents: int, parts: int, *, tx: Transaction = INJECTED, step_id: StepId = INJECTED
) -> None:
    for number in range(parts):
        await execute(tx, MOVE, payment, cents, f"{step_id}/{number}")


async def note(subject: str, text: str, *, tx: Transaction = INJECTED) -> None:
    await execute(tx, NOTE, subject, text)


async def note_slowly(
    subject: str, text: str, *, tx: Transaction = INJECTED, step_id: StepId = INJECTED
) -> None:
    """Keep the transaction open until a file is there."""
    await execute(tx, NOTE, subject, text)
    Outside.write(subject, "waits", step_id)
    # Another process makes the file.
    while not Outside.path.with_suffix(".go").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def act(subject: str, what: str, *, step_id: StepId = INJECTED) -> str:
    Outside.write(subject, what, step_id)
    return what


def look(subject: str, what: str, *, step_id: StepId = INJECTED) -> int:
    return Outside.write(subject, what, step_id)


async def hang(subject: str, *, step_id: StepId = INJECTED) -> None:
    Outside.write(subject, "hang", step_id)
    await asyncio.Event().wait()


def fail_first(subject: str, *, step_id: StepId = INJECTED) -> str:
    if Outside.write(subject, "fail", step_id) == 0:
        raise ConnectionError(AILING)
    return "well"


def refuse(subject: str) -> str:
    raise LookupError(f"nobody knows {subject}")


def hand_out(subject: str) -> object:
    return Callable


def know(subject: str) -> str:
    return "known"


# Payments.


@flow
async def pay(ctx: FlowContext, peer: str, payment: str, cents: int) -> str:
    """Take money from here, and have another bank take it in; give it back if that fails."""
    await ctx.step(move, payment, -cents)
    session = ctx.open_session(peer)
    try:
        receipt = await session.send_and_receive(Order(payment, cents), str)
    except PeerFlowFailedError:
        await ctx.step(move, payment, cents)
        raise
    await ctx.step(note, payment, receipt)
    return receipt


@responder(pay)
async def credit(ctx: FlowContext, session: FlowSession) -> None:
    order = await session.receive(Order)
    if order.cents > CENTS_MAX:
        raise FlowError(f"{order.payment} is too much")
    await ctx.step(move, order.payment, order.cents)
    await session.send(f"took {order.payment}")


@flow
async def pay_both(ctx: FlowContext, peers: list[str], payment: str, cents: int) -> list[str]:
    """Pay to several banks at once."""
    await ctx.step(move_parts, payment, -cents, len(peers))
    sessions = [ctx.open_session(peer) for peer in peers]
    await ctx.send_all({session: Order(payment, cents) for session in sessions})
    return await ctx.receive_all(sessions, str)


@responder(pay_both)
async def credit_part(ctx: FlowContext, session: FlowSession) -> None:
    order = await session.receive(Order)
    await ctx.step(move, order.payment, order.cents)
    await session.send(f"took {order.payment}")


# Conversations.


@flow
async def dictate(ctx: FlowContext, peer: str, subject: str) -> int:
    """Say many lines in a row, with a rest in the midst, and close; do more after that."""
    session = ctx.open_session(peer)
    for number in range(LINES // 2):
        await session.send(f"{subject} {number}")
    await ctx.wait_for_signal("more", bool)
    for number in range(LINES // 2, LINES):
        await session.send(f"{subject} {number}")
    await session.close()
    await ctx.step(act, subject, "closed")
    return LINES


@responder(dictate)
async def listen(ctx: FlowContext, session: FlowSession) -> list[str]:
    """Have all of it wait, then take it down until the other end says no more."""
    await ctx.wait_for_signal("listen", bool)
    lines: list[str] = []
    try:
        while True:
            lines.append(await session.receive(str))
    except SessionEndedError:
        lines.append("end")
    for line in lines:
        await ctx.step(note, lines[0].split()[0], line)
    return lines


@flow
async def ask(ctx: FlowContext, peer: str, subject: str) -> str:
    """Ask something, and wait for what may never come."""
    return await ctx.open_session(peer).send_and_receive(subject, str)


@responder(ask)
async def answer(ctx: FlowContext, session: FlowSession) -> str:
    """Answer when told to; note how the other end took it."""
    subject = await session.receive(str)
    await ctx.wait_for_signal("answer", bool)
    try:
        await session.send(f"about {subject}")
        heard = await session.receive(str)
    except FlowError as error:
        heard = type(error).__name__
    await ctx.step(note, subject, heard)
    return heard


@flow
async def blurt(ctx: FlowContext, peer: str, subject: str) -> None:
    """Fail before the other end has said anything."""
    await ctx.open_session(peer).send(subject)
    raise FlowError(f"{subject} was a mistake")


@responder(blurt)
async def hear_out(ctx: FlowContext, session: FlowSession) -> str:
    subject = await session.receive(str)
    try:
        heard = await session.receive(str)
    except PeerFlowFailedError as error:
        heard = f"{error.kind} {error}"
    await ctx.step(note, subject, heard)
    return heard


@flow
async def collect(ctx: FlowContext, peer: str, subject: str) -> list[str]:
    """Take lines from another bank, with an error in the midst that passes."""
    session = ctx.open_session(peer)
    await session.send(subject)
    lines = [await session.receive(str) for _ in range(LINES // 2)]
    await ctx.step(fail_first, subject)
    lines += [await session.receive(str) for _ in range(LINES // 2)]
    await ctx.step(note, subject, " ".join(lines))
    return lines


@responder(collect)
async def recite(ctx: FlowContext, session: FlowSession) -> None:
    subject = await session.receive(str)
    for number in range(LINES):
        await session.send(f"{subject}-{number}")
        await ctx.step(act, subject, f"said-{number}")


@flow(version=2)
async def order(ctx: FlowContext, peer: str, subject: str) -> str:
    return await ctx.open_session(peer).send_and_receive(subject, str)


@responder(order, versions=[1])
async def take_order(ctx: FlowContext, session: FlowSession) -> None:
    await ctx.step(note, await session.receive(str), "taken")


# Alone.


@flow
async def errand(ctx: FlowContext, subject: str) -> list[str]:
    """Do things outside, one after the other."""
    return [await ctx.step(act, subject, what) for what in ("first", "second", "third")]


@flow
async def browse(ctx: FlowContext, subject: str) -> list[int]:
    """Only look, twice, and write down what there was."""
    first = await ctx.read(look, subject, "first")
    second = await ctx.read(look, subject, "second")
    await ctx.step(note, subject, f"{first} {second}")
    return [first, second]


@flow
async def errands(ctx: FlowContext, subject: str) -> list[str]:
    """Do things outside, all at the same time."""
    return await ctx.gather(
        *(ctx.step(act, subject, f"branch-{number}") for number in range(BRANCHES))
    )


@flow
async def choose(ctx: FlowContext, subject: str) -> str:
    """Take what comes first, and let the other go."""
    chosen, _ = await ctx.select(
        hang=ctx.step(hang, subject), first=ctx.wait_for_signal("first", bool), second=_second(ctx)
    )
    await ctx.step(note, subject, chosen)
    return chosen


async def _second(ctx: FlowContext) -> bool:
    return await ctx.wait_for_signal("second", bool)


@flow
async def nap(ctx: FlowContext, subject: str, seconds: float) -> float:
    """Rest; returns for how long, as this flow sees it."""
    began = ctx.now()
    await ctx.sleep(seconds)
    await ctx.step(note, subject, "awake")
    return (ctx.now() - began).total_seconds()


@flow
async def whole(ctx: FlowContext, subject: str) -> str:
    """Do something, and have a part of it be another flow."""
    await ctx.step(note, subject, "before")
    await ctx.step(act, subject, "before")
    got = await ctx.run_subflow(part, subject)
    await ctx.step(note, subject, "after")
    return got


@flow
async def part(ctx: FlowContext, subject: str) -> str:
    await ctx.step(note, subject, "inside")
    return await ctx.step(act, subject, "inside")


@flow
async def ail(ctx: FlowContext, subject: str) -> str:
    """Meet an error that passes."""
    await ctx.step(note, subject, "before")
    state = await ctx.step(fail_first, subject)
    await ctx.step(note, subject, "after")
    return state


@flow
async def ship(ctx: FlowContext, subject: str) -> None:
    await ctx.step(note, subject, "packed")
    await ctx.step(note, subject, await ctx.wait_for_signal("address", str))


@flow
async def delegate(ctx: FlowContext, subject: str) -> list[str]:
    """Have children do things, and write down what they did."""
    children = [await ctx.start_child(task, subject, what) for what in ("one", "two")]
    results = [await child.result() for child in children]
    await ctx.step(note, subject, " ".join(results))
    return results


@flow
async def task(ctx: FlowContext, subject: str, what: str) -> str:
    await ctx.step(note, subject, what)
    return what


@flow
async def book(ctx: FlowContext, subject: str) -> None:
    """Undo a booking when the flow is cancelled."""
    await ctx.step(note, subject, "booked")
    try:
        await ctx.wait_for_signal("never", bool)
    except FlowCancelledError:
        await ctx.step(note, subject, "refunded")
        raise


@flow
async def heed(ctx: FlowContext, subject: str) -> list[int]:
    """Hear one number while a transaction is open, and another one later."""
    await ctx.step(note_slowly, subject, "slowly")
    first = await ctx.wait_for_signal("number", int)
    await ctx.step(note, subject, "heard")
    return [first, await ctx.wait_for_signal("number", int)]
