"""Ways in which a run can go wrong. The exit code of the program tells them apart."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import ClassVar, TypeAlias

CRASH = 127
"""Something raised that should not have."""


class SimulationFailure(Exception):
    """A checker found a rule broken."""

    exit_code: ClassVar[int]
    kind: ClassVar[str]


class LivenessFailure(SimulationFailure):
    """Something that had to happen did not."""

    exit_code = 128
    kind = "liveness"


class SafetyFailure(SimulationFailure):
    """Something happened that must not."""

    exit_code = 129
    kind = "correctness"


Reporter: TypeAlias = Callable[[BaseException], None]

REPORTER: ContextVar[Reporter | None] = ContextVar("postroad_reporter", default=None)
"""Where a simulated process tells of failures; node code may swallow what is merely raised."""


def require(holds: bool, claim: str) -> None:
    """Fail the run as incorrect unless the claim holds."""
    if not holds:
        failure = SafetyFailure(claim)
        report = REPORTER.get()
        if report is not None:
            report(failure)
        raise failure
