"""What every scenario gets: time, chance and a log, all determined by the seed."""

from postroad.testing import Scenario, Simulation

__all__ = ["Scenario", "Simulation"]
