"""What the run left in the databases, read when all nodes have stopped."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from examples.clearing import bank, house
from examples.clearing.job import JOB_FILE
from postroad.admin.flows import FlowStatus, reading_flows
from postroad.admin.pipeline import dead_segments

_ENDED = (FlowStatus.COMPLETED, FlowStatus.FAILED, FlowStatus.KILLED)
_DEAD_MAX = 100_000

Rows = Counter[tuple[str, int, int]]
"""Account, number and cents of payments, and how often each stands there."""


@dataclass(frozen=True)
class BankBooks:
    """The tables of one bank, and how many of its flows have not ended."""

    debits: Rows
    credits: Rows
    settlements: Rows
    refunds: Rows
    receipts: Rows
    unended: int


@dataclass(frozen=True)
class HouseBooks:
    """What the job made known."""

    alerts: Rows
    totals: Mapping[str, int]
    """The newest total of each account."""
    dead: Mapping[str, str]
    """Payments that were given up, and why."""
    dead_rows: int
    """How many entries these are."""


async def read_bank(store: Path) -> BankBooks:
    """The books of a bank."""
    async with reading_flows(str(store)) as flows:
        unended = sum(
            [len(await flows.all_of(status)) for status in FlowStatus if status not in _ENDED]
        )
    debits, credits, settlements, refunds, receipts = await asyncio.to_thread(
        _read_tables, store, bank.TABLES
    )
    return BankBooks(debits, credits, settlements, refunds, receipts, unended)


async def read_house(store: Path) -> HouseBooks:
    """The books of the clearing house."""
    (alerts,) = await asyncio.to_thread(_read_tables, store, (house.ALERTS,))
    dead = await dead_segments(JOB_FILE, str(store), _DEAD_MAX)
    reasons = {_name(it.segment): it.error for it in dead}
    return HouseBooks(alerts, await asyncio.to_thread(_read_totals, store), reasons, len(dead))


def _name(segment: object) -> str:
    assert isinstance(segment, dict)
    return f"{segment['account']}/{segment['number']}"


def _read_tables(store: Path, tables: tuple[str, ...]) -> list[Rows]:
    with closing(sqlite3.connect(store)) as database:
        return [
            Counter(database.execute(f"SELECT account, number, cents FROM {table}").fetchall())
            for table in tables
        ]


def _read_totals(store: Path) -> dict[str, int]:
    with closing(sqlite3.connect(store)) as database:
        query = f"SELECT account, cents FROM {house.TOTALS} ORDER BY rowid"
        return dict(database.execute(query).fetchall())
