"""The fair queue against a list, under any sequence of offers and takes."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from postroad.cells.delivery.fair_queue import FairQueue
from tests.support.tiers import by_tier

ITEMS_MAX = 12
BYTES_MAX = 60

sources = st.sampled_from("abcde")
vias = st.sampled_from([None, "a", "x"])
sizes = st.integers(0, BYTES_MAX + 20)


class FairQueueMachine(RuleBasedStateMachine):
    """What is in the queue is what was taken in and not taken out, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(ITEMS_MAX, BYTES_MAX)
        self.model: list[tuple[int, int, str, str | None]] = []
        self.count = 0

    @rule(source=sources, via=vias, size=sizes)
    def advertisement(self, source: str, via: str | None, size: int) -> None:
        self.count += 1
        was_taken = self.queue.try_put(self.count, size, source, via=via)
        assert was_taken == self.is_welcome(source, via, size)
        if was_taken:
            self.model.append((self.count, size, source, via))

    def is_welcome(self, source: str, via: str | None, size: int) -> bool:
        """Nobody may hold more than what stays free, nor within the share of whom it came by.

        An empty queue takes anything.
        """
        if not self.model:
            return True
        free_items = ITEMS_MAX - len(self.model)
        free_bytes = BYTES_MAX - sum(item[1] for item in self.model)
        held = [item for item in self.model if (item[3] or item[2]) == (via or source)]
        if len(held) >= free_items or sum(item[1] for item in held) + size > free_bytes:
            return False
        if via is None:
            return True
        free_items, free_bytes = free_items - len(held), free_bytes - sum(item[1] for item in held)
        held = [item for item in held if item[2:] == (source, via)]
        return len(held) < free_items and sum(item[1] for item in held) + size <= free_bytes

    @precondition(lambda self: self.model)
    @rule()
    def take(self) -> None:
        assert self.queue.pop() == self.model.pop(0)[0]

    @rule()
    def take_all(self) -> None:
        assert list(self.queue.pop_all()) == [item[0] for item in self.model]
        self.model.clear()

    @invariant()
    def counts_are_right(self) -> None:
        assert len(self.queue) == len(self.model)
        assert self.queue.bytes == sum(item[1] for item in self.model)

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.queue) <= ITEMS_MAX
        # A single large item is the only one that may be above the limit.
        assert self.queue.bytes <= BYTES_MAX or len(self.queue) == 1 or self.zeros_but_one()

    def zeros_but_one(self) -> bool:
        return sum(item[1] > 0 for item in self.model) == 1

    @invariant()
    def nobody_has_it_all(self) -> None:
        held = Counter(item[3] or item[2] for item in self.model)
        if len(self.model) > 1:
            assert max(held.values()) <= ITEMS_MAX // 2 + 1


TestFairQueue = FairQueueMachine.TestCase
TestFairQueue.settings = settings(max_examples=by_tier(test=40, nightly=1_000, quick=10))
