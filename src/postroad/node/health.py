"""Whether a node is ready, and if not, why."""

from __future__ import annotations

import enum


class Part(enum.Enum):
    """What a node is made of, in the order it is started."""

    TRACES = "traces"
    NETWORK = "network"
    CLUSTER = "cluster"
    CELLS = "cells"
    QUEUES = "queues"
    GUARANTEES = "guaranteed queues"
    FLOWS = "flows"
    SERVICES = "services"
    APP = "program"


class State(enum.Enum):
    """The life of a node."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class Readiness:
    """How far the start has come, and whether the end has begun."""

    def __init__(self) -> None:
        self.state = State.NEW
        self._starting: Part | None = None

    def starts(self, part: Part) -> None:
        """A part is being started."""
        self.state, self._starting = State.STARTING, part

    def runs(self, part: Part) -> None:
        """A part was started; with the last one the node runs."""
        self._starting = None
        if part is Part.APP:
            self.state = State.RUNNING

    def drains(self) -> None:
        """Nothing new is taken from now on."""
        self.state = State.DRAINING

    def ends(self) -> None:
        """Everything was stopped."""
        self.state = State.STOPPED

    def reasons(self) -> list[str]:
        """Why it is not ready; empty if it is."""
        if self.state is State.RUNNING:
            return []
        if self._starting is not None:
            return [f"the {self._starting.value} part is being started"]
        return [f"the node is {self.state.value}"]
