"""What was asked and what was done, and the rules that hold at every moment."""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import Any

from postroad.testing import require


class Books:
    """All calls, events and streams of one run, by their numbers."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._lives = count(1)
        # By the number of a call, how often it may be tried, and the lives that ran and answered.
        self._tries: dict[int, int] = {}
        self.begun: dict[int, list[str]] = defaultdict(list)
        self._done: dict[int, list[str]] = defaultdict(list)
        # By the number of an event, whether all may get it, and who did.
        self._is_for_all: dict[int, bool] = {}
        self._got: dict[tuple[int, str], list[str]] = defaultdict(list)
        self._handled: dict[tuple[int, str], list[str]] = defaultdict(list)

    def new_life(self, node_id: str) -> str:
        return f"{node_id}#{next(self._lives)}"

    # Calls.

    def ask(self, tries: int = 1) -> int:
        number = next(self._numbers)
        self._tries[number] = tries
        return number

    def begin(self, number: int, life: str) -> None:
        require(number in self._tries, f"{life} runs call {number}, which nobody made")
        self.begun[number].append(life)
        allowed = len(self.begun[number]) <= self._tries[number]
        require(allowed, f"call {number} was run by {self.begun[number]}")

    def answer(self, number: int, life: str, value: int = 0) -> dict[str, Any]:
        """An action is done; gives its result."""
        self._done[number].append(life)
        return {"number": number, "life": life, "value": value}

    def check_result(self, number: int, result: Any, value: int = 0) -> None:
        """A call ended well: it was run, and this is what came of it."""
        require(isinstance(result, dict), f"call {number} got {result!r}")
        life = result.get("life")
        require(life in self._done[number], f"call {number} was never done by {life}")
        expected = {"number": number, "life": life, "value": value}
        require(result == expected, f"call {number} got {result}, not {expected}")

    # Events.

    def tell(self, *, all_get_it: bool = False) -> int:
        number = next(self._numbers)
        self._is_for_all[number] = all_get_it
        return number

    def get(self, number: int, group: str, who: str) -> None:
        """A handler runs; `who` is a life and its service."""
        require(number in self._is_for_all, f"{who} got event {number}, which nobody sent")
        before = self._got[number, group]
        is_first = who not in before if self._is_for_all[number] else not before
        require(is_first, f"event {number} came to {who} in {group}, and before to {before}")
        before.append(who)

    def handle(self, number: int, group: str, who: str) -> None:
        self._handled[number, group].append(who)

    def check_handled(self, number: int, groups: tuple[str, ...]) -> None:
        """An event was acknowledged: one handler of each group succeeded."""
        for group in groups:
            handled = self._handled[number, group]
            require(len(handled) == 1, f"event {number} is acked, {group}: {handled}")


def content_of(number: int, size: int) -> bytes:
    word = b"%d," % number
    return (word * (size // len(word) + 1))[:size]
