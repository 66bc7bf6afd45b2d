"""Ways in which a run can go wrong. The exit code of the program tells them apart."""

from postroad.testing import (
    CRASH,
    CorrectnessFailure,
    LivenessFailure,
    SimulationFailure,
    require,
)

__all__ = ["CRASH", "CorrectnessFailure", "LivenessFailure", "SimulationFailure", "require"]
