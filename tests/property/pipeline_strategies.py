"""Random jobs, what they are given, and how what came of them is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from hypothesis import settings
from hypothesis import strategies as st

from postroad.pipeline import (
    FlowAction,
    FlowCondition,
    Job,
    Task,
    TaskType,
    Trigger,
    TriggerType,
    Window,
    WindowType,
)
from postroad.pipeline.connectors.connector import RawRecords, encode_segment
from postroad.pipeline.windows.aggregations import BUILT_IN
from tests.support.pipeline.both_ways import Comparable, Failed, Kept, Slices, refuse_nothing
from tests.support.pipeline.odd_functions import (
    FUNCTIONS,
    HANDLED,
    PREDICATES,
    STOPPING,
    TRANSFORMS,
    UNKEEPABLE,
    is_unwritable,
)
from tests.support.tiers import by_tier

_EXAMPLES = settings().max_examples
SOME = settings(max_examples=by_tier(test=_EXAMPLES * 2 // 5, nightly=_EXAMPLES))
"""For tests whose examples take long; at night there are as many as of all others."""

# Jobs.


@st.composite
def jobs(draw: st.DrawFn, stages_max: int = 1) -> Job:
    """A valid job."""
    inputs = ["in0", "in1"][: draw(st.integers(1, 2))]
    names = [f"t{number}" for number in range(draw(st.integers(0, 5)))]
    outputs = ["out0", "out1"][: draw(st.integers(1, 2))]
    edges = draw(workflows(inputs, names, outputs))
    groups = draw(groupings(edges, [*inputs, *names, *outputs], stages_max))
    catalog = [
        *[draw(tasks(name, TaskType.INPUT)) for name in inputs],
        *[draw(tasks(name, TaskType.FUNCTION, groups[name])) for name in names],
        *[draw(tasks(name, TaskType.OUTPUT, groups[name])) for name in outputs],
    ]
    count = draw(st.integers(0, 2)) if names else 0
    windows = [draw(windows_of(f"w{number}", names)) for number in range(count)]
    return Job(
        name="job",
        workflow=draw(st.permutations(edges)),
        catalog=catalog,
        flow_conditions=draw(conditions(edges)),
        windows=windows,
        triggers=[
            Trigger(window=it.name, on=TriggerType.PUNCTUATION, predicate="triggers:is_third")
            for it in windows
            if draw(st.booleans())
        ],
    )


GroupBy: TypeAlias = str | list[str] | None
GROUPINGS: list[GroupBy] = [None, "n", "extra", ["n", "extra"], ["marks", "nowhere"]]


@st.composite
def groupings(
    draw: st.DrawFn, edges: list[tuple[str, str]], names: list[str], stages_max: int
) -> dict[str, GroupBy]:
    """What tasks are grouped by; names come after those of the tasks they follow."""
    groups: dict[str, GroupBy] = {}
    stages: dict[str, int] = {}
    for name in names:
        above = max((stages[source] for source, target in edges if target == name), default=-1)
        can_group = 0 <= above < stages_max - 1
        groups[name] = draw(st.sampled_from(GROUPINGS)) if can_group else None
        stages[name] = max(above, 0) + (groups[name] is not None)
    return groups


@st.composite
def workflows(
    draw: st.DrawFn, inputs: list[str], names: list[str], outputs: list[str]
) -> list[tuple[str, str]]:
    """Edges that leave nothing without somewhere to go or to come from."""
    edges: list[tuple[str, str]] = []
    for place, name in enumerate(names):
        edges += [(it, name) for it in draw(some_of([*inputs, *names[:place]], at_least=1))]
    for source in (*inputs, *names):
        is_leaf = all(it != source for it, _ in edges)
        edges += [(source, it) for it in draw(some_of(outputs, at_least=int(is_leaf)))]
    for output in outputs:
        if all(it != output for _, it in edges):
            edges.append((draw(st.sampled_from([*inputs, *names])), output))
    return edges


def some_of(names: list[str], at_least: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), min_size=at_least, max_size=3, unique=True)


@st.composite
def tasks(draw: st.DrawFn, name: str, type: TaskType, group_by: GroupBy = None) -> Task:
    function = st.sampled_from(sorted(FUNCTIONS))
    fn = draw(function if type is TaskType.FUNCTION else st.none() | function)
    params = {"mark": name} if fn == "functions:mark" else {}
    connector = None if type is TaskType.FUNCTION else "seq"
    return Task(name=name, type=type, fn=fn, params=params, group_by=group_by, connector=connector)


def windows_of(name: str, names: list[str]) -> st.SearchStrategy[Window]:
    return st.builds(
        lambda task, aggregation, times: Window(
            name=name, task=task, aggregation=aggregation, key="n", **times
        ),
        st.sampled_from(names),
        st.sampled_from(sorted(BUILT_IN)),
        st.sampled_from(
            [
                {"type": WindowType.GLOBAL},
                {"type": WindowType.FIXED, "time_key": "n", "range_s": 3.0},
                {"type": WindowType.SLIDING, "time_key": "n", "range_s": 4.0, "slide_s": 2.0},
                {"type": WindowType.SESSION, "time_key": "n", "gap_s": 1.0},
            ]
        ),
    )


@st.composite
def conditions(draw: st.DrawFn, edges: list[tuple[str, str]]) -> list[FlowCondition]:
    """Conditions in the order they must have."""
    # Those that want a root again are few: what they leave is little to compare.
    kinds = st.one_of(
        returned(edges), returned(edges), raised(edges), raised(edges), retried(edges)
    )
    return sorted([draw(kinds) for _ in range(draw(st.integers(0, 5)))], key=rank)


def rank(condition: FlowCondition) -> int:
    if isinstance(condition.to, str):
        return ["all", "none"].index(condition.to)
    return 2 if condition.short_circuit else 3


def sources(edges: list[tuple[str, str]]) -> st.SearchStrategy[str]:
    return st.sampled_from(["all", *dict.fromkeys(name for edge in edges for name in edge)])


@st.composite
def targets(draw: st.DrawFn, edges: list[tuple[str, str]], source: str) -> str | list[str]:
    children = [target for it, target in edges if source in (it, "all")]
    if not children:
        return "none"
    named = some_of(list(dict.fromkeys(children)), at_least=1)
    return draw(st.one_of(st.sampled_from(["all", "none"]), named))


def predicates(names: Sequence[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.sampled_from(sorted(names)),
        lambda parts: st.one_of(
            st.builds(lambda part: {"not": part}, parts),
            st.builds(lambda some: {"and": some}, st.lists(parts, min_size=1, max_size=2)),
            st.builds(lambda some: {"or": some}, st.lists(parts, min_size=1, max_size=2)),
        ),
        max_leaves=3,
    )


EXCLUDED = st.sampled_from([[], [], ["extra"], ["n"], ["extra", "marks"]])


@st.composite
def returned(draw: st.DrawFn, edges: list[tuple[str, str]]) -> FlowCondition:
    source = draw(sources(edges))
    to = draw(targets(edges, source))
    predicate = draw(st.none() | predicates(list(PREDICATES)))
    params = {"limit": 2} if predicate == "predicates:is_small" and draw(st.booleans()) else {}
    return FlowCondition(
        source=source,
        to=to,
        predicate=predicate,
        params=params,
        exclude_keys=draw(EXCLUDED),
        short_circuit=isinstance(to, str) or draw(st.booleans()),
    )


@st.composite
def raised(draw: st.DrawFn, edges: list[tuple[str, str]]) -> FlowCondition:
    source = draw(sources(edges))
    retries = draw(st.integers(0, 5)) == 0
    return FlowCondition(
        source=source,
        to="none" if retries else draw(targets(edges, source)),
        predicate=draw(st.none() | predicates(list(HANDLED))),
        exceptions=True,
        short_circuit=True,
        post_transform=draw(st.none() | st.sampled_from(sorted(TRANSFORMS))),
        exclude_keys=draw(EXCLUDED),
        action=FlowAction.RETRY if retries else None,
    )


def retried(edges: list[tuple[str, str]]) -> st.SearchStrategy[FlowCondition]:
    return st.builds(
        FlowCondition,
        source=sources(edges),
        to=st.just("none"),
        predicate=predicates(list(PREDICATES)),
        short_circuit=st.just(True),
        action=st.just(FlowAction.RETRY),
    )


# What they are given.

SEGMENTS = st.builds(
    lambda n, extra: encode_segment({"n": n, "extra": extra}), st.integers(0, 9), st.booleans()
)
ODD_RAWS = st.sampled_from(
    [b"", b"\xc1", encode_segment(7), encode_segment({}), UNKEEPABLE, STOPPING]
)
ONE_OF_EACH = [encode_segment({"n": n, "extra": "x"}) for n in range(10)]
GENERATIONS = st.sampled_from([0, 0, 1, 2**40])


@st.composite
def deliveries(draw: st.DrawFn, inputs: list[str]) -> list[Slices]:
    """Slices in which no root is twice; one of every number for each input, and some more."""
    slices = [
        Slices(name, draw(GENERATIONS), [RawRecords("each", range(10), ONE_OF_EACH)])
        for name in inputs
    ]
    for number in range(draw(st.integers(0, 2))):
        some = [draw(chunks(f"{number}-{place}")) for place in range(draw(st.integers(0, 2)))]
        slices.append(Slices(draw(st.sampled_from(inputs)), draw(GENERATIONS), some))
    return slices


@st.composite
def chunks(draw: st.DrawFn, source: str) -> RawRecords:
    raws = draw(st.lists(SEGMENTS | ODD_RAWS, max_size=6))
    first = draw(st.sampled_from([0, 7, 2**62]))
    positions: Sequence[int | str] = range(first, first + len(raws))
    if draw(st.booleans()):
        positions = [f"key {position}" for position in positions]
    return RawRecords(source, positions, raws)


class Writing(NamedTuple):
    """How outputs take what they are given."""

    refuses: bool
    at_once: int

    def open(self) -> Kept:
        return Kept(is_unwritable if self.refuses else refuse_nothing, self.at_once)


WRITING = st.builds(Writing, st.booleans(), st.sampled_from([1, 100]))


# And what comes of it.


def alike(outcome: Comparable, windowed: frozenset[str]) -> Comparable:
    """Of several windows that refuse what one root adds, any may be the one that is told."""
    if len(windowed) < 2:
        return outcome
    return outcome._replace(
        failed={root: without_names(it, windowed) for root, it in outcome.failed.items()}
    )


def without_names(failed: Failed, windowed: frozenset[str]) -> Failed:
    if len(failed.failed_tasks) == 1 and failed.failed_tasks[0] in windowed:
        return failed._replace(failed_tasks=["a window"], error=None)
    return failed
