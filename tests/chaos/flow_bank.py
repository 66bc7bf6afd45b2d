"""The flows of a bank, as the processes of the chaos tests run them.

What they do in the store is in two tables: `moves` of money, and `notes`. What they do outside of
it is in a file beside the store, with a line for each time that it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from postroad.durable import Transaction
from postroad.flows import Flow, Session, flow, responds_to
from postroad.flows.definition import Definition
from postroad.flows.errors import FlowError, PeerFailed, SessionEnded
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


async def move(payment: str, cents: int, *, tx: Transaction, step_id: str) -> None:
    await execute(tx, MOVE, payment, cents, step_id)


async def note(subject: str, text: str, *, tx: Transaction) -> None:
    await execute(tx, NOTE, subject, text)


async def note_slowly(subject: str, text: str, *, tx: Transaction, step_id: str) -> None:
    """Keep the transaction open until a file is there."""
    await execute(tx, NOTE, subject, text)
    Outside.write(subject, "waits", step_id)
    # Another process makes the file.
    while not Outside.path.with_suffix(".go").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def act(subject: str, what: str, *, step_id: str) -> str:
    Outside.write(subject, what, step_id)
    return what


async def hang(subject: str, *, step_id: str) -> None:
    Outside.write(subject, "hang", step_id)
    await asyncio.Event().wait()


def fail_first(subject: str, *, step_id: str) -> str:
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
async def pay(flow: Flow, peer: str, payment: str, cents: int) -> str:
    """Take money from here, and have another bank take it in; give it back if that fails."""
    await flow.step(move, payment, -cents)
    session = flow.open(peer)
    try:
        receipt = await session.send_and_receive(Order(payment, cents), str)
    except PeerFailed:
        await flow.step(move, payment, cents)
        raise
    await flow.step(note, payment, receipt)
    return receipt


@responds_to(pay)
async def credit(flow: Flow, session: Session) -> None:
    order = await session.receive(Order)
    if order.cents > CENTS_MAX:
        raise FlowError(f"{order.payment} is too much")
    await flow.step(move, order.payment, order.cents)
    await session.send(f"took {order.payment}")


@flow
async def pay_both(flow: Flow, peers: list[str], payment: str, cents: int) -> list[str]:
    """Pay to several banks at once."""
    async with flow.transaction() as tx:
        for number, peer in enumerate(peers):
            step_id = f"{flow.id}/{peer}/{number}"
            await execute(tx, MOVE, payment, -cents, step_id)
    sessions = [flow.open(peer) for peer in peers]
    await flow.send_all({session: Order(payment, cents) for session in sessions})
    return await flow.receive_all(sessions, str)


@responds_to(pay_both)
async def credit_part(flow: Flow, session: Session) -> None:
    order = await session.receive(Order)
    await flow.step(move, order.payment, order.cents)
    await session.send(f"took {order.payment}")


# Conversations.


@flow
async def dictate(flow: Flow, peer: str, subject: str) -> int:
    """Say many lines in a row, with a rest in the midst, and close; do more after that."""
    session = flow.open(peer)
    for number in range(LINES // 2):
        await session.send(f"{subject} {number}")
    await flow.signal("more", bool)
    for number in range(LINES // 2, LINES):
        await session.send(f"{subject} {number}")
    await session.close()
    await flow.step(act, subject, "closed")
    return LINES


@responds_to(dictate)
async def listen(flow: Flow, session: Session) -> list[str]:
    """Have all of it wait, then take it down until the other end says no more."""
    await flow.signal("listen", bool)
    lines: list[str] = []
    try:
        while True:
            lines.append(await session.receive(str))
    except SessionEnded:
        lines.append("end")
    for line in lines:
        await flow.step(note, lines[0].split()[0], line)
    return lines


@flow
async def ask(flow: Flow, peer: str, subject: str) -> str:
    """Ask something, and wait for what may never come."""
    return await flow.open(peer).send_and_receive(subject, str)


@responds_to(ask)
async def answer(flow: Flow, session: Session) -> str:
    """Answer when told to; note how the other end took it."""
    subject = await session.receive(str)
    await flow.signal("answer", bool)
    try:
        await session.send(f"about {subject}")
        heard = await session.receive(str)
    except FlowError as error:
        heard = type(error).__name__
    await flow.step(note, subject, heard)
    return heard


@flow
async def blurt(flow: Flow, peer: str, subject: str) -> None:
    """Fail before the other end has said anything."""
    await flow.open(peer).send(subject)
    raise FlowError(f"{subject} was a mistake")


@responds_to(blurt)
async def hear_out(flow: Flow, session: Session) -> str:
    subject = await session.receive(str)
    try:
        heard = await session.receive(str)
    except PeerFailed as error:
        heard = f"{error.kind} {error}"
    await flow.step(note, subject, heard)
    return heard


@flow
async def collect(flow: Flow, peer: str, subject: str) -> list[str]:
    """Take lines from another bank, with an error in the midst that passes."""
    session = flow.open(peer)
    await session.send(subject)
    lines = [await session.receive(str) for _ in range(LINES // 2)]
    await flow.step(fail_first, subject)
    lines += [await session.receive(str) for _ in range(LINES // 2)]
    await flow.step(note, subject, " ".join(lines))
    return lines


@responds_to(collect)
async def recite(flow: Flow, session: Session) -> None:
    subject = await session.receive(str)
    for number in range(LINES):
        await session.send(f"{subject}-{number}")
        await flow.step(act, subject, f"said-{number}")


@flow(version=2)
async def order(flow: Flow, peer: str, subject: str) -> str:
    return await flow.open(peer).send_and_receive(subject, str)


@responds_to(order, versions=[1])
async def take_order(flow: Flow, session: Session) -> None:
    await flow.step(note, await session.receive(str), "taken")


# Alone.


@flow
async def errand(flow: Flow, subject: str) -> list[str]:
    """Do things outside, one after the other."""
    return [await flow.step(act, subject, what) for what in ("first", "second", "third")]


@flow
async def errands(flow: Flow, subject: str) -> list[str]:
    """Do things outside, all at the same time."""
    return await flow.gather(
        *(flow.step(act, subject, f"branch-{number}") for number in range(BRANCHES))
    )


@flow
async def choose(flow: Flow, subject: str) -> str:
    """Take what comes first, and let the other go."""
    chosen, _ = await flow.select(
        hang=flow.step(hang, subject), first=flow.signal("first", bool), second=_second(flow)
    )
    await flow.step(note, subject, chosen)
    return chosen


async def _second(flow: Flow) -> bool:
    return await flow.signal("second", bool)


@flow
async def nap(flow: Flow, subject: str, seconds: float) -> float:
    """Rest; returns for how long, as this flow sees it."""
    began = flow.now()
    await flow.sleep(seconds)
    await flow.step(note, subject, "awake")
    return (flow.now() - began).total_seconds()


@flow
async def whole(flow: Flow, subject: str) -> str:
    """Do something, and have a part of it be another flow."""
    await flow.step(note, subject, "before")
    await flow.step(act, subject, "before")
    got = await flow.call(part, subject)
    await flow.step(note, subject, "after")
    return got


@flow
async def part(flow: Flow, subject: str) -> str:
    await flow.step(note, subject, "inside")
    return await flow.step(act, subject, "inside")


@flow
async def ail(flow: Flow, subject: str) -> str:
    """Meet an error that passes."""
    await flow.step(note, subject, "before")
    state = await flow.step(fail_first, subject)
    await flow.step(note, subject, "after")
    return state


@flow
async def heed(flow: Flow, subject: str) -> list[int]:
    """Hear one number while a transaction is open, and another one later."""
    await flow.step(note_slowly, subject, "slowly")
    first = await flow.signal("number", int)
    await flow.step(note, subject, "heard")
    return [first, await flow.signal("number", int)]


# Those whose code is not always the same.


def _journey(*stages: str) -> Definition[[str], list[str]]:
    @flow(name="journey")
    async def journey(flow: Flow, subject: str) -> list[str]:
        """Go from place to place, and wait in the midst."""
        seen = []
        for stage in stages:
            if stage == "wait":
                await flow.signal("go", bool)
            else:
                seen.append(await flow.step(act, subject, stage, name=stage.partition("-")[0]))
        return seen

    return journey


def _doubt(function: Callable[[str], Any]) -> Definition[[str], str]:
    @flow(name="doubt")
    async def doubt(flow: Flow, subject: str) -> str:
        """Ask somebody who may not know."""
        await flow.step(note, subject, "before")
        found = await flow.step(function, subject, name="ask")
        await flow.step(note, subject, "after")
        return str(found)

    return doubt


_ALWAYS: list[Definition[Any, Any]] = [
    *(pay, pay_both, dictate, ask, blurt, collect, order),
    *(errand, errands, choose, nap, whole, part, ail, heed),
]
_RESPONDERS: list[Definition[Any, Any]] = [
    *(credit, credit_part, listen, answer, hear_out, recite, take_order),
]
_JOURNEY = _journey("home", "river", "wait", "hill")
_USUAL = [*_ALWAYS, *_RESPONDERS]

CODE: dict[str, list[Definition[Any, Any]]] = {
    "usual": [*_USUAL, _JOURNEY, _doubt(refuse)],
    "silent": [*_ALWAYS, _JOURNEY, _doubt(refuse)],
    "odd": [*_USUAL, _JOURNEY, _doubt(hand_out)],
    "mended": [*_USUAL, _JOURNEY, _doubt(know)],
    "fewer": [*_USUAL, _journey("home", "wait", "hill"), _doubt(refuse)],
    "extra": [*_USUAL, _journey("home", "road", "river", "wait", "hill"), _doubt(refuse)],
    "reordered": [*_USUAL, _journey("river", "home", "wait", "hill"), _doubt(refuse)],
    "arguments": [*_USUAL, _journey("home", "river-bank", "wait", "hill"), _doubt(refuse)],
    "shorter": [*_USUAL, _journey("home"), _doubt(refuse)],
}
"""What a process may have been started with: the code as it is, and as somebody changed it."""
