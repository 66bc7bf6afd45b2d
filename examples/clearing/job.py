"""The functions of the job in `job.toml`, which Spark's workers import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.clearing.payments import LARGE_CENTS
from postroad.pipeline import Segment

JOB_FILE = Path(__file__).with_name("job.toml")


class Refused(Exception):
    """A payment that nobody may clear."""


def check(segment: Segment) -> Segment:
    """Refuse what cannot be cleared."""
    if segment["purpose"] == "bribe":
        raise Refused(f"{segment['account']}/{segment['number']} is a bribe")
    return segment


def keep(segment: Segment) -> Segment:
    """Add it to the total of its account, as it is."""
    return segment


def is_of(new: Segment, old: Any, *, bank: str) -> bool:
    """Whether a payment is of one bank."""
    return bool(new["bank"] == bank)


def is_large(new: Segment, old: Any) -> bool:
    """Whether somebody should know of a payment."""
    return bool(new["cents"] > LARGE_CENTS)
