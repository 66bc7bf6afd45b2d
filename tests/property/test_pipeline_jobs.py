"""What holds for every job: a valid one survives being written, a broken one is reported."""

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postroad.pipeline.explain import explain_mermaid, explain_text
from postroad.pipeline.graph import JobGraph
from postroad.pipeline.job import TaskKind
from postroad.pipeline.job_files import job_from_data, job_from_json, job_to_data, job_to_json
from postroad.pipeline.validation import find_problems
from tests.property.pipeline_strategies import SOME
from tests.support.pipeline.jobs import complaints

Data = dict[str, Any]

PATHS = ["bank.parsing:parse", "bank.rules:Rules.is_big", "sums:total"]

words = st.text("abcäß_ .'\"#0", min_size=1, max_size=6).filter(lambda it: it.strip() == it)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
tables = st.dictionaries(st.text(max_size=3), plain, max_size=2)
seconds = st.floats(0.001, 1e9)
paths = st.sampled_from(PATHS)
predicates = st.recursive(
    paths,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"and": parts}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"or": parts}),
        inner.map(lambda part: {"not": part}),
    ),
    max_leaves=3,
)
groups = st.none() | words | st.lists(words, min_size=1, max_size=2, unique=True)


def told(**keys: Any) -> Data:
    return {key: value for key, value in keys.items() if value is not None}


@st.composite
def inputs(draw: st.DrawFn, name: str) -> Data:
    batch = draw(st.integers(1, 10_000))
    first = draw(st.floats(0.1, 10))
    return told(
        name=name,
        type="input",
        connector=draw(words),
        options=draw(tables),
        batch_size=batch,
        max_pending=batch + draw(st.integers(0, 10)),
        retry=draw(st.none() | st.just({"first_s": first, "max_s": first + 1, "attempts": 2})),
    )


@st.composite
def functions(draw: st.DrawFn, name: str) -> Data:
    task = told(name=name, type="function", group_by=draw(groups), doc=draw(st.text(max_size=5)))
    if draw(st.booleans()):
        columns = {"a": "bigint", "b": "double"}
        return task | {"kind": "sql", "expressions": {"sum": "a + b"}, "columns": columns}
    kind = draw(st.sampled_from(["segment", "arrow"]))
    limit = draw(st.none() | seconds)
    return task | told(kind=kind, fn=draw(paths), params=draw(tables), time_limit_s=limit)


@st.composite
def outputs(draw: st.DrawFn, name: str) -> Data:
    return told(name=name, type="output", connector=draw(words), group_by=draw(groups))


@st.composite
def workflows(draw: st.DrawFn, sources: list[str], middle: list[str], ends: list[str]) -> Any:
    """Edges that lead forward only, from and to everything."""
    ordered = [*sources, *middle, *ends]
    edges: set[tuple[str, str]] = set()
    for place, name in enumerate(middle, start=len(sources)):
        parents = st.lists(st.sampled_from(ordered[:place]), min_size=1, max_size=3)
        edges.update((parent, name) for parent in draw(parents))
    for name in ends:
        parents = st.lists(st.sampled_from([*sources, *middle]), min_size=1, max_size=3)
        edges.update((parent, name) for parent in draw(parents))
    edges.update(
        (name, draw(st.sampled_from(ends)))
        for name in [*sources, *middle]
        if not any(name == source for source, _ in edges)
    )
    return draw(st.permutations([list(edge) for edge in sorted(edges)]))


@st.composite
def conditions(draw: st.DrawFn, workflow: list[list[str]]) -> list[Data]:
    """Some for one task, in the order they must have."""
    source = draw(st.sampled_from(sorted({edge[0] for edge in workflow})))
    children = [target for origin, target in workflow if origin == source]
    named = st.lists(st.sampled_from(children), min_size=1, unique=True)
    every: list[Data] = [
        {"to": "all", "short_circuit": True},
        {"to": "none", "short_circuit": True, "action": "retry"},
        {"to": draw(named), "short_circuit": True, "params": draw(tables)},
        {"to": draw(st.sampled_from(children)), "exclude_keys": ["secret"]},
        {"to": "none", "short_circuit": True, "exceptions": True},
    ]
    chosen = [it for it in every if draw(st.booleans())]
    return [{"from": source, "predicate": draw(predicates), **it} for it in chosen]


WINDOWS: list[Data] = [
    {"type": "fixed", "time_key": "at", "range_s": 60.0, "aggregation": "count"},
    {"type": "sliding", "time_key": "at", "range_s": 60.0, "slide_s": 5.0, "aggregation": "a:b"},
    {"type": "session", "time_key": "at", "gap_s": 3.0, "aggregation": "sum", "key": "amount"},
    {"type": "global", "aggregation": "collect"},
]
TRIGGERS: list[Data] = [
    {"on": "segments", "threshold": 3.0},
    {"on": "timer", "threshold": 0.5, "refinement": "discarding"},
    {"on": "punctuation", "predicate": "a:b"},
    {"on": "drained", "emit": "a:b"},
]


@st.composite
def jobs(draw: st.DrawFn) -> Data:
    """The data of a valid job."""
    names = draw(st.lists(words, min_size=3, max_size=8, unique=True))
    first = draw(st.integers(1, len(names) - 2))
    last = draw(st.integers(first, len(names) - 1))
    sources, middle, ends = names[:first], names[first:last], names[last:]
    catalog = [draw(inputs(name)) for name in sources]
    catalog += [draw(functions(name)) for name in middle]
    catalog += [draw(outputs(name)) for name in ends]
    workflow = draw(workflows(sources, middle, ends))
    windowed = draw(st.lists(st.sampled_from(middle), max_size=2)) if middle else []
    windows = [
        {"name": f"w{number}", "task": task, **draw(st.sampled_from(WINDOWS))}
        for number, task in enumerate(windowed)
    ]
    return {
        "name": draw(st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)),
        "workflow": workflow,
        "catalog": draw(st.permutations(catalog)),
        "flow_conditions": draw(conditions(workflow)),
        "windows": windows,
        "triggers": [{"window": it["name"], **draw(st.sampled_from(TRIGGERS))} for it in windows],
        "lifecycles": [{"task": draw(st.sampled_from(["all", *names])), "calls": "a:b"}],
        "metadata": draw(tables),
    }


# Valid jobs.


@SOME
@given(jobs())
def test_a_valid_job_has_no_problems_and_survives_being_written(data: Data) -> None:
    assert complaints(data) == []
    job = job_from_data(data)
    assert find_problems(job) == []
    assert job_from_data(job_to_data(job)) == job
    assert job_from_json(job_to_json(job)) == job
    assert job_from_json(json.dumps(data)) == job


@SOME
@given(jobs())
def test_a_graph_is_in_order_and_cut_into_stages(data: Data) -> None:
    job = job_from_data(data)
    graph = JobGraph(job)
    places = {name: place for place, name in enumerate(graph.order)}
    assert sorted(places) == sorted(graph.tasks)
    assert all(places[source] < places[target] for source, target in job.workflow)
    # Windows, and functions of groups after the last stage, bring their segments together.
    gathering = {window.task for window in job.windows}
    gathering |= {name for name, task in graph.tasks.items() if task.kind is TaskKind.GROUP}
    shuffled = {name for name, task in graph.tasks.items() if task.group_by is not None} - gathering
    for name, task in graph.tasks.items():
        before = max((graph.stage_of[parent] for parent in graph.parents[name]), default=0)
        is_apart = name in shuffled or task.kind is TaskKind.SQL
        assert graph.stage_of[name] == before + is_apart
    assert [stage.index for stage in graph.stages] == list(range(len(graph.stages)))
    assert sorted(name for stage in graph.stages for name in stage.tasks) == sorted(places)
    for stage in graph.stages:
        assert all(graph.stage_of[name] == stage.index for name in stage.tasks)
        assert list(stage.shuffled) == [name for name in stage.tasks if name in shuffled]
        computed = [name for name in stage.tasks if graph.tasks[name].kind is TaskKind.SQL]
        assert list(stage.computed) == computed
        assert bool(stage.shuffled or stage.computed) == (stage.index > 0)


@SOME
@given(jobs())
def test_where_there_is_a_choice_the_order_is_that_of_the_catalog(data: Data) -> None:
    graph = JobGraph(job_from_data(data))
    done: set[str] = set()
    for name in graph.order:
        free = [it for it in graph.tasks if it not in done and done >= set(graph.parents[it])]
        assert name == free[0]
        done.add(name)


@SOME
@given(jobs())
def test_a_drawing_shows_every_task_and_arrow(data: Data) -> None:
    job = job_from_data(data)
    text, chart = explain_text(job), explain_mermaid(job)
    assert text.count("─> ") == len(job.workflow)
    assert all(f"\n  {task.name}: {task.type}" in text for task in job.catalog)
    assert chart.count("subgraph") == len(JobGraph(job).stages)
    assert explain_text(job_from_data(copy.deepcopy(data))) == text
    assert explain_mermaid(job_from_data(copy.deepcopy(data))) == chart


# Broken jobs. Each way to break one returns the beginning of the entry that must be named.

Break = Callable[[Data, st.DataObject], str]
SECTIONS = {
    "catalog": "catalog",
    "flow_conditions": "flow condition",
    "windows": "window",
    "triggers": "trigger",
    "lifecycles": "lifecycle",
}
REQUIRED = {
    "catalog": ["name", "type"],
    "flow_conditions": ["from", "to"],
    "windows": ["name", "task", "type", "aggregation"],
    "triggers": ["window", "on"],
    "lifecycles": ["task", "calls"],
}


def some_entry(data: Data, chance: st.DataObject) -> tuple[str, Data]:
    section = chance.draw(st.sampled_from([it for it in SECTIONS if data[it]]))
    return section, chance.draw(st.sampled_from(data[section]))


def misspell_a_key(data: Data, chance: st.DataObject) -> str:
    section, entry = some_entry(data, chance)
    key = chance.draw(st.sampled_from(sorted(entry)))
    entry[key + "q"] = entry.pop(key)
    return SECTIONS[section]


def forget_a_key(data: Data, chance: st.DataObject) -> str:
    section, entry = some_entry(data, chance)
    del entry[chance.draw(st.sampled_from(REQUIRED[section]))]
    return SECTIONS[section]


def give_a_wrong_value(data: Data, chance: st.DataObject) -> str:
    section, entry = some_entry(data, chance)
    # No key may have such a list.
    entry[chance.draw(st.sampled_from(sorted(entry)))] = [3]
    return SECTIONS[section]


def give_nothing(data: Data, chance: st.DataObject) -> str:
    section, entry = some_entry(data, chance)
    entry[chance.draw(st.sampled_from(REQUIRED[section]))] = None
    return SECTIONS[section]


def repeat_an_edge(data: Data, chance: st.DataObject) -> str:
    data["workflow"].append(list(chance.draw(st.sampled_from(data["workflow"]))))
    return f"workflow edge {len(data['workflow'])}"


def close_a_circle(data: Data, chance: st.DataObject) -> str:
    data["workflow"].append(chance.draw(st.sampled_from(data["workflow"]))[::-1])
    return "workflow"


def lead_nowhere(data: Data, chance: st.DataObject) -> str:
    place = chance.draw(st.integers(0, len(data["workflow"]) - 1))
    data["workflow"][place] = [data["workflow"][place][0], "nowhere at all"]
    return f"workflow edge {place + 1}"


def forget_a_task(data: Data, chance: st.DataObject) -> str:
    data["catalog"].remove(chance.draw(st.sampled_from(data["catalog"])))
    return "workflow edge"


def repeat_a_task(data: Data, chance: st.DataObject) -> str:
    task = chance.draw(st.sampled_from(data["catalog"]))
    data["catalog"].append(dict(task))
    return f"catalog {task['name']!r}"


def add_an_idle_task(data: Data, chance: st.DataObject) -> str:
    place = chance.draw(st.integers(0, len(data["catalog"])))
    data["catalog"].insert(
        place, {"name": "nowhere at all", "type": "output", "connector": "memory"}
    )
    return "catalog 'nowhere at all'"


def change_the_type(data: Data, chance: st.DataObject) -> str:
    task = chance.draw(st.sampled_from(data["catalog"]))
    others = {"input", "function", "output"} - {task["type"]}
    task["type"] = chance.draw(st.sampled_from(sorted(others)))
    return f"catalog {task['name']!r}"


def misname_the_job(data: Data, chance: st.DataObject) -> str:
    data["name"] += chance.draw(st.sampled_from([" ", "/", "\n", "x" * 64]))
    return "job"


def misspell_a_section(data: Data, chance: st.DataObject) -> str:
    section = chance.draw(st.sampled_from(sorted(data)))
    data[section + "q"] = data.pop(section)
    return "job"


BREAKS: list[Break] = [
    add_an_idle_task,
    change_the_type,
    close_a_circle,
    forget_a_key,
    forget_a_task,
    give_a_wrong_value,
    give_nothing,
    lead_nowhere,
    misname_the_job,
    misspell_a_key,
    misspell_a_section,
    repeat_a_task,
    repeat_an_edge,
]


@SOME
@given(jobs(), st.sampled_from(BREAKS), st.data())
def test_a_broken_job_is_reported_where_it_is_broken(
    data: Data, break_it: Break, chance: st.DataObject
) -> None:
    broken = copy.deepcopy(data)
    entry = break_it(broken, chance)
    problems = find_problems(broken)
    assert any(problem.entry.startswith(entry) for problem in problems), problems


@SOME
@given(jobs(), st.data())
def test_several_breaks_are_reported_together(data: Data, chance: st.DataObject) -> None:
    broken = copy.deepcopy(data)
    breaks = (give_a_wrong_value, misname_the_job, add_an_idle_task)
    entries = [break_it(broken, chance) for break_it in breaks]
    found = {problem.entry for problem in find_problems(broken)}
    assert all(any(it.startswith(entry) for it in found) for entry in entries), found


junk = st.recursive(
    plain | st.sampled_from(["all", "none", "in", "input", "function"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "type", "fn", "from", "to", "task", "window", "retry", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@SOME
@given(st.dictionaries(st.sampled_from([*SECTIONS, "workflow", "name", "doc"]), junk))
def test_junk_is_reported_and_never_breaks_the_rules_themselves(data: Data) -> None:
    assert find_problems(data)
