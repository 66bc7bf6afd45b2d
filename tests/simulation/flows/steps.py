"""What the flows of the simulated banks do outside of their conversations."""

from __future__ import annotations

import asyncio
import random
import sqlite3

from postroad.durable import Retry, Transaction

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
