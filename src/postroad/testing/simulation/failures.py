"""Failures of a run, each with its exit code."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import ClassVar, TypeAlias

CRASH = 127
"""The exit code of an unexpected exception."""


class SimulationFailure(Exception):
    """A rule of the scenario is violated."""

    exit_code: ClassVar[int]
    kind: ClassVar[str]


class LivenessFailure(SimulationFailure):
    """Something that must happen did not (liveness)."""

    exit_code = 128
    kind = "liveness"


class SafetyFailure(SimulationFailure):
    """Something happened that must not (safety)."""

    exit_code = 129
    kind = "safety"


Reporter: TypeAlias = Callable[[BaseException], None]

REPORTER: ContextVar[Reporter | None] = ContextVar("postroad_reporter", default=None)
"""Callback for failures of a simulated process; code of a node may swallow exceptions."""


def require(holds: bool, claim: str) -> None:
    """Raise a SafetyFailure unless the claim holds."""
    if not holds:
        failure = SafetyFailure(claim)
        report = REPORTER.get()
        if report is not None:
            report(failure)
        raise failure
