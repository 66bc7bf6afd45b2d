"""Virtual time of the scenarios of pure machines."""

from postroad.testing.timeline import ACTIONS_MAX, Action, Timeline, Timer

__all__ = ["ACTIONS_MAX", "Action", "Timeline", "Timer"]
