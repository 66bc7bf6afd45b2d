"""Random numbers for the code of flows: the same whenever it is run, and nobody else's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from postroad.core.errors import UsageError

from .code import RUNNING


class FlowRandom(random.Random):
    """Random numbers of one run of a flow.

    Args:
        owner: the code that may draw from it.
        streams: where numbers come from, and from how many steps on; a flow that was forked has its
            own after the steps that it shares.
        run: how often the flow began anew.
        count_steps: how many steps the code has done when it draws.
    """

    def __init__(
        self,
        owner: object,
        streams: Sequence[tuple[int, bytes]],
        run: int,
        count_steps: Callable[[], int],
    ) -> None:
        self._owner = owner
        self._streams = list(streams)
        self._run = run.to_bytes(8)
        self._count_steps = count_steps
        super().__init__(self._streams.pop(0)[1] + self._run)

    def __new__(cls, *args: object) -> FlowRandom:
        # That of the base class would take them for a seed.
        return super().__new__(cls)

    def _check_owner(self) -> None:
        if RUNNING.get() is not self._owner:
            raise UsageError(
                "ctx.random() and ctx.uuid() belong to the code of the flow: when that is run "
                "again, its steps are not, and it would draw other values. Draw in the code, and "
                "give the value to the step as an argument; a step that wants a text which is the "
                "same whenever it is repeated has a parameter annotated as StepId"
            )
        while self._streams and self._count_steps() >= self._streams[0][0]:
            self.seed(self._streams.pop(0)[1] + self._run)

    def random(self) -> float:
        self._check_owner()
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        self._check_owner()
        return super().getrandbits(k)

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        # It may have one that was drawn before.
        self._check_owner()
        return super().gauss(mu, sigma)
