"""The functions of the job in `clearing.toml`, which Spark's workers import, and what it is fed.

Payments come as a bank might send them, amounts as texts. One of many is bad and can never be
cleared, however often it comes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from postroad.pipeline import Segment

JOB_FILE = Path(__file__).with_name("clearing.toml")
BANKS = tuple(f"bank-{number}" for number in range(1, 9))
BAD_EVERY = 500

_AMOUNT = re.compile(r"(\d+)\.(\d\d)")


class Refused(Exception):
    """A payment that nobody may clear."""


def parse(segment: Segment) -> Segment:
    """Read the amount."""
    amount = segment["amount"]
    found = _AMOUNT.fullmatch(amount)
    if found is None:
        raise ValueError(f"{amount!r} is no amount")
    cents = int(found[1]) * 100 + int(found[2])
    return {"number": segment["number"], "bank": segment["bank"], "cents": cents}


def check(segment: Segment) -> Segment:
    """Refuse what cannot be cleared."""
    if segment["bank"] not in BANKS:
        raise Refused(f"there is no {segment['bank']}")
    if segment["cents"] == 0:
        raise Refused("a payment of nothing")
    return segment


def keep(segment: Segment) -> Segment:
    """Add it to the total of its bank, as it is."""
    return segment


class Order(NamedTuple):
    """A payment to be cleared, as it is posted."""

    number: int
    bank: str
    amount: str
    cents: int | None
    """What it comes to; None if it is bad."""


def make_order(number: int) -> Order:
    """Orders look like any, and are the same in every run."""
    bank = BANKS[number * 7 % len(BANKS)]
    cents = number * 7_919 % 20_000 + 1
    amount = f"{cents // 100}.{cents % 100:02}"
    if number % BAD_EVERY:
        return Order(number, bank, amount, cents)
    kinds = [(bank, "12.5O"), (bank, "0.00"), ("bank-99", amount)]
    return Order(number, *kinds[number // BAD_EVERY % len(kinds)], None)
