"""Random jobs whose functions workers can import."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from postroad.pipeline import Job, MemoryInput
from postroad.pipeline.validation import require_valid

FUNCTIONS = "tests.support.pipeline.random_job_functions:"
RETRY = {"attempts": 2, "first_s": 0.02, "max_s": 0.05}
MAKES = ([1], [1], [0, 1], [1, 2], [0, 1, 3])
GROUPS = ("n", "g", ["g", "n"], ["g", "nowhere"])
TIMES: Sequence[dict[str, Any]] = (
    {"type": "global"},
    {"type": "fixed", "time_key": "n", "range_s": 10},
    {"type": "session", "time_key": "n", "gap_s": 2},
)
SEGMENTS = 250

Edge = tuple[str, str]
Entry = dict[str, Any]


class JobMaker:
    """Makes a job; the same from the same seed."""

    def __init__(self, seed: int, stages_max: int = 3) -> None:
        self._chance = random.Random(seed)
        self._stages_max = stages_max
        self._name = f"random-{seed}"
        self.inputs = ["in0", "in1"][: self._chance.randint(1, 2)]
        self._functions = [f"t{number}" for number in range(self._chance.randint(2, 4))]
        self._outputs = ["out0", "out1"][: self._chance.randint(1, 2)]
        self._gathering: set[str] = set()

    def make(self) -> Job:
        edges = self._edges()
        windows = self._windows()
        windowed = [it["task"] for it in windows]
        self._gathering = {
            it for it in self._functions if it not in windowed and self._chance.random() < 0.3
        }
        # What windows and functions of groups emit has long pauses before it comes again.
        never_failing = descendants(edges, [*windowed, *sorted(self._gathering)])
        return require_valid(
            {
                "name": self._name,
                "workflow": edges,
                "catalog": self._catalog(edges, never_failing),
                "flow_conditions": self._conditions(edges),
                "windows": windows,
                "triggers": [{"window": it["name"], "on": "drained"} for it in windows],
            }
        )

    def _edges(self) -> list[Edge]:
        """Each function follows one or two tasks, and leads somewhere."""
        above = list(self.inputs)
        edges: list[Edge] = []
        for name in self._functions:
            edges += [(it, name) for it in self._some(above, 2)]
            above.append(name)
        followed = {source for source, _ in edges}
        edges += [(it, self._chance.choice(self._outputs)) for it in above if it not in followed]
        reached = {target for _, target in edges}
        edges += [(self._functions[-1], it) for it in self._outputs if it not in reached]
        return edges

    def _some(self, names: Sequence[str], most: int) -> list[str]:
        return self._chance.sample(names, min(self._chance.randint(1, most), len(names)))

    def _catalog(self, edges: Sequence[Edge], never_failing: set[str]) -> list[Entry]:
        stages: dict[str, int] = dict.fromkeys(self.inputs, 0)
        inputs = [
            {
                "name": it,
                "type": "input",
                "connector": "memory",
                "retry": RETRY,
                "batch_size": SEGMENTS,
            }
            for it in self.inputs
        ]
        return [
            *inputs,
            *[
                self._function(it, it not in never_failing) | self._group(it, edges, stages)
                for it in self._functions
            ],
            *[
                {"name": it, "type": "output", "connector": "memory"}
                | self._group(it, edges, stages)
                for it in self._outputs
            ],
        ]

    def _group(self, name: str, edges: Sequence[Edge], stages: dict[str, int]) -> Entry:
        stages[name] = max(stages[source] for source, target in edges if target == name)
        if name in self._gathering:
            return {"group_by": self._chance.choice(GROUPS)}
        if stages[name] + 1 >= self._stages_max or self._chance.random() < 0.4:
            return {}
        stages[name] += 1
        return {"group_by": self._chance.choice(GROUPS)}

    def _function(self, name: str, may_fail: bool) -> Entry:
        if name in self._gathering:
            return self._group_function(name, may_fail)
        params = {
            "salt": name,
            "makes": self._chance.choice(MAKES),
            "fails": self._chance.choice([0, 2, 5]) if may_fail else 0,
        }
        fn = FUNCTIONS + self._chance.choice(["work", "work_one_by_one"])
        return {"name": name, "type": "function", "fn": fn, "params": params}

    def _group_function(self, name: str, may_fail: bool) -> Entry:
        has_state = self._chance.random() < 0.5
        params = {"salt": name, "fails": self._chance.choice([0, 10]) if may_fail else 0}
        fn = FUNCTIONS + ("count_group" if has_state else "pass_group")
        kind = {"kind": "group", "state": has_state}
        return {"name": name, "type": "function", "fn": fn, "params": params} | kind

    def _conditions(self, edges: Sequence[Edge]) -> list[Entry]:
        """Some go only here or there, and some exceptions are handled."""
        normal, exceptional = [], []
        for name in self._functions:
            children = [target for source, target in edges if source == name]
            if self._chance.random() < 0.4:
                share = {"salt": f"{name}?", "share": self._chance.choice([50, 80])}
                condition = {"predicate": FUNCTIONS + "lies", "params": share}
                normal.append({"from": name, "to": self._some(children, 2)} | condition)
            if name not in self._gathering and self._chance.random() < 0.3:
                handled = {"predicate": FUNCTIONS + "is_lookup", "exceptions": True}
                made = {"post_transform": FUNCTIONS + "confess", "short_circuit": True}
                exceptional.append({"from": name, "to": [children[0]]} | handled | made)
        return exceptional + normal

    def _windows(self) -> list[Entry]:
        if self._chance.random() < 0.4:
            return []
        what = {"aggregation": self._chance.choice(["count", "sum", "collect"]), "key": "n"}
        task = self._chance.choice(self._functions)
        return [{"name": "w", "task": task} | what | self._chance.choice(TIMES)]


def descendants(edges: Sequence[Edge], names: Sequence[str]) -> set[str]:
    """All that comes after some tasks."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        after = {target for source, target in edges if source == name} - found
        found |= after
        waiting += after
    return found


def random_inputs(names: Sequence[str]) -> dict[str, MemoryInput]:
    return {
        name: MemoryInput(({"n": n, "of": name} for n in range(SEGMENTS)), split_segments=60)
        for name in names
    }
