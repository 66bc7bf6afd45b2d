"""The graph of a valid job: what follows what, in which order, and in which stages it runs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

import msgspec

from postroad.pipeline.job import Job, Task, TaskKind, TaskType


class Stage(msgspec.Struct, frozen=True):
    """Tasks that run as one pass over a batch of segments.

    Between two there is a shuffle, or Spark computes expressions, or both. Segments end where a
    function takes all of a batch, of kind `group` or `dataframe`, and new ones begin: that is no
    matter of stages.
    """

    index: int
    tasks: tuple[str, ...]
    """In topological order."""
    shuffled: tuple[str, ...]
    """Those of them that have a shuffle before them; none in the first stage."""
    computed: tuple[str, ...] = ()
    """Those of them whose expressions Spark computes before; none in the first stage either."""


class JobGraph:
    """A valid job, looked at as a graph.

    Attributes:
        job: the job.
        tasks: tasks by name, as the catalog has them.
        children: names of the tasks that follow one, as the workflow has them.
        parents: names of the tasks that one follows.
        order: every name after those of its parents; as in the catalog where that leaves a choice.
        inputs: names of inputs, in that order.
        outputs: names of outputs, in that order.
        inputs_of: names of the inputs whose segments come to a task, itself if it is one.
        stage_of: index of the stage of each task.
        stages: all stages, the first one first.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tasks: Mapping[str, Task] = {task.name: task for task in job.catalog}
        self.children: Mapping[str, tuple[str, ...]] = {
            name: tuple(target for source, target in job.workflow if source == name)
            for name in self.tasks
        }
        self.parents: Mapping[str, tuple[str, ...]] = {
            name: tuple(source for source, target in job.workflow if target == name)
            for name in self.tasks
        }
        # What a window holds is kept by group, wherever its segments come from.
        self._windowed = frozenset(window.task for window in job.windows)
        self.order = tuple(self._in_order())
        self.inputs = self._of_type(TaskType.INPUT)
        self.outputs = self._of_type(TaskType.OUTPUT)
        self.inputs_of = self._reaching_inputs()
        self.stage_of = self._stage_indexes()
        self.stages = self._gather_stages()

    def is_shuffled(self, source: str, target: str) -> bool:
        """Whether segments are sorted into groups on their way from one task to another."""
        return target in self.children[source] and self._is_grouped(target)

    def _in_order(self) -> Iterator[str]:
        places = {name: place for place, name in enumerate(self.tasks)}
        waiting = {name: len(parents) for name, parents in self.parents.items()}
        ready = [(places[name], name) for name, count in waiting.items() if count == 0]
        while ready:
            _, name = heapq.heappop(ready)
            yield name
            for child in self.children[name]:
                waiting[child] -= 1
                if waiting[child] == 0:
                    heapq.heappush(ready, (places[child], child))

    def _of_type(self, type_: TaskType) -> tuple[str, ...]:
        return tuple(name for name in self.order if self.tasks[name].type == type_)

    def _reaching_inputs(self) -> Mapping[str, frozenset[str]]:
        reaching: dict[str, frozenset[str]] = {}
        for name in self.order:
            own = {name} if self.tasks[name].type == TaskType.INPUT else set[str]()
            reaching[name] = frozenset(own).union(*(reaching[it] for it in self.parents[name]))
        return reaching

    def _stage_indexes(self) -> Mapping[str, int]:
        stages: dict[str, int] = {}
        for name in self.order:
            above = max((stages[it] for it in self.parents[name]), default=0)
            stages[name] = above + (self._is_grouped(name) or self._is_computed(name))
        return stages

    def _gather_stages(self) -> tuple[Stage, ...]:
        count = max(self.stage_of.values(), default=-1) + 1
        return tuple(self._stage(index) for index in range(count))

    def _stage(self, index: int) -> Stage:
        names = tuple(name for name in self.order if self.stage_of[name] == index)
        return Stage(
            index=index,
            tasks=names,
            shuffled=tuple(filter(self._is_grouped, names)),
            computed=tuple(filter(self._is_computed, names)),
        )

    def _is_grouped(self, name: str) -> bool:
        task = self.tasks[name]
        # A function of groups is called after the last stage, and segments meet there.
        is_gathering = task.kind is TaskKind.GROUP
        return task.group_by is not None and name not in self._windowed and not is_gathering

    def _is_computed(self, name: str) -> bool:
        return self.tasks[name].kind is TaskKind.SQL
