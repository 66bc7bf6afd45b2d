"""Ways in which a run can go wrong. The exit code of the program tells them apart."""

from __future__ import annotations

from typing import ClassVar

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


class CorrectnessFailure(SimulationFailure):
    """Something happened that must not."""

    exit_code = 129
    kind = "correctness"


def require(holds: bool, claim: str) -> None:
    """Fail the run as incorrect unless the claim holds."""
    if not holds:
        raise CorrectnessFailure(claim)
