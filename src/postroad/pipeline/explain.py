"""A valid job, drawn for people as text or as a Mermaid flowchart: always in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from postroad.core.timing import format_duration
from postroad.pipeline.graph import JobGraph, Stage
from postroad.pipeline.job import (
    ALL,
    NONE,
    FlowCondition,
    Job,
    Predicate,
    Task,
    TaskKind,
    TaskType,
    Trigger,
    TriggerType,
    Window,
)

_RULE_WIDTH = 60


def explain_text(job: Job) -> str:
    """Draw a valid job as text: stage after stage, each task with what follows it."""
    graph = JobGraph(job)
    tasks, stages = _count(len(graph.order), "task"), _count(len(graph.stages), "stage")
    lines = [f"job {job.name}: {tasks} in {stages}"]
    lines += [f"  {line}" for line in job.doc.splitlines()]
    lines += [f"  every task: {line}" for line in _notes(job, ALL)]
    for stage in graph.stages:
        lines += ["", *_stage_heading(graph, stage)]
        for name in stage.tasks:
            lines += _task_lines(graph, name)
    return "\n".join(lines) + "\n"


def explain_mermaid(job: Job) -> str:
    """Draw a valid job as a Mermaid flowchart, with a subgraph for each stage."""
    graph = JobGraph(job)
    nodes = {name: f"t{place}" for place, name in enumerate(graph.order)}
    lines = ["flowchart LR"]
    for stage in graph.stages:
        lines.append(f"    subgraph stage{stage.index}[{_quoted([f'stage {stage.index}'])}]")
        lines += [f"        {nodes[name]}{_node(graph, name)}" for name in stage.tasks]
        lines.append("    end")
    for source in graph.order:
        lines += [f"    {line}" for line in _arrows(graph, nodes, source)]
    return "\n".join(lines) + "\n"


# Text.


def _stage_heading(graph: JobGraph, stage: Stage) -> Iterator[str]:
    if stage.shuffled:
        groups = (f"{name} by {_group(graph.tasks[name])}" for name in stage.shuffled)
        yield f"== shuffle: {', '.join(groups)} ".ljust(_RULE_WIDTH, "=")
    if stage.computed:
        yield f"== Spark SQL: {', '.join(stage.computed)} ".ljust(_RULE_WIDTH, "=")
    yield f"stage {stage.index}"


def _task_lines(graph: JobGraph, name: str) -> Iterator[str]:
    yield f"  {name}: {', '.join(_facts(graph.tasks[name]))}"
    for note in _notes(graph.job, name):
        yield f"      {note}"
    children = graph.children[name]
    for place, child in enumerate(children, start=1):
        corner = "└" if place == len(children) else "├"
        shuffle = f" (shuffle by {_group(graph.tasks[child])})"
        yield f"    {corner}─> {child}{shuffle if graph.is_shuffled(name, child) else ''}"


def _notes(job: Job, name: str) -> Iterator[str]:
    """Windows, conditions and hooks of a task, or of all tasks."""
    for window in job.windows:
        if window.task == name:
            yield f"window {window.name}: {_window(window)}"
            yield from (
                f"  {_trigger(trigger)}"
                for trigger in job.triggers
                if trigger.window == window.name
            )
    for condition in job.flow_conditions:
        if condition.source == name:
            yield f"{_when(condition)}: {_then(condition)}"
    for lifecycle in job.lifecycles:
        if lifecycle.task == name:
            yield f"hooks: {lifecycle.hooks}"


# Mermaid.

_SHAPES = {
    TaskType.INPUT: "([{}])",
    TaskType.FUNCTION: "[{}]",
    TaskType.OUTPUT: "[({})]",
}
_ESCAPES = str.maketrans(
    {"#": "#35;", '"': "#quot;", "&": "#amp;", "<": "#lt;", ">": "#gt;", "`": "#96;"}
)


def _node(graph: JobGraph, name: str) -> str:
    task = graph.tasks[name]
    windows = (
        f"window {window.name}: {_window(window)}"
        for window in graph.job.windows
        if window.task == name
    )
    return _SHAPES[task.type].format(_quoted([name, *_facts(task), *windows]))


def _arrows(graph: JobGraph, nodes: dict[str, str], source: str) -> Iterator[str]:
    conditions = [
        condition for condition in graph.job.flow_conditions if condition.source in (source, ALL)
    ]
    for child in graph.children[source]:
        leading = [flow for flow in conditions if flow.to == ALL or child in _targets(flow)]
        labels = [_when(condition) for condition in leading]
        if graph.is_shuffled(source, child):
            labels.append(f"shuffle by {_group(graph.tasks[child])}")
            arrow = "==>"
        else:
            is_exceptional = bool(leading) and all(condition.exceptions for condition in leading)
            arrow = "-.->" if is_exceptional else "-->"
        yield f"{nodes[source]} {arrow}{_label(labels)} {nodes[child]}"
    for number, condition in enumerate(flow for flow in conditions if flow.to == NONE):
        end = f"{nodes[source]}end{number}(({_quoted([_then(condition)])}))"
        yield f"{nodes[source]} -.->{_label([_when(condition)])} {end}"


def _label(labels: list[str]) -> str:
    return f"|{_quoted(labels)}|" if labels else ""


def _quoted(lines: Iterable[str]) -> str:
    return '"' + "<br/>".join(line.translate(_ESCAPES) for line in lines) + '"'


# Words for both.


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _facts(task: Task) -> Iterator[str]:
    if task.type is TaskType.FUNCTION:
        yield "function"
    else:
        yield f"{task.type} {'from' if task.type is TaskType.INPUT else 'to'} {task.connector}"
    if task.fn is not None:
        yield task.fn
    for column, expression in task.expressions.items():
        yield f"{column} = {' '.join(expression.split())}"
    if task.kind is TaskKind.ARROW:
        yield "in Arrow batches"
    if task.kind is TaskKind.GROUP:
        yield "a group at a time" + (", with state" if task.state else "")
    if task.kind is TaskKind.DATAFRAME:
        yield "as a DataFrame, acknowledged with its batch"
    for name, side in task.side_inputs.items():
        yield f"with {name} from {side.connector}"
    if task.group_by is not None:
        yield f"grouped by {_group(task)}"


def _group(task: Task) -> str:
    keys = [task.group_by] if isinstance(task.group_by, str) else task.group_by or []
    return " and ".join(keys)


def _targets(condition: FlowCondition) -> list[str]:
    return [condition.to] if isinstance(condition.to, str) else condition.to


def _when(condition: FlowCondition) -> str:
    predicate = None if condition.predicate is None else _predicate(condition.predicate)
    if condition.exceptions:
        return "when it raised" if predicate is None else f"when it raised and {predicate}"
    return "always" if predicate is None else f"when {predicate}"


def _predicate(predicate: Predicate | Any) -> str:
    if isinstance(predicate, str):
        return predicate
    ((junction, parts),) = predicate.items()
    if junction == "not":
        return f"not {_predicate(parts)}"
    return f"({f' {junction} '.join(_predicate(part) for part in parts)})"


def _then(condition: FlowCondition) -> str:
    if condition.action is not None:
        return "again from the input"
    if condition.to == NONE:
        return "dropped"
    words = ["to " + ("all" if condition.to == ALL else ", ".join(_targets(condition)))]
    if condition.post_transform is not None:
        words.append(f"as {condition.post_transform} makes it")
    if condition.exclude_keys:
        words.append(f"without {', '.join(condition.exclude_keys)}")
    if condition.short_circuit:
        words.append("and nothing else is looked at")
    return ", ".join(words)


def _window(window: Window) -> str:
    words = [window.type.value]
    for word, seconds in (
        ("of", window.range_s),
        ("every", window.slide_s),
        ("until silent for", window.gap_s),
    ):
        if seconds is not None:
            words.append(f"{word} {format_duration(seconds)}")
    if window.time_key is not None:
        words.append(f"timed by {window.time_key}")
    what = window.aggregation if window.key is None else f"{window.aggregation} of {window.key}"
    kept = (
        ""
        if window.allowed_lateness_s is None
        else f", kept for {format_duration(window.allowed_lateness_s)}"
    )
    return f"{' '.join(words)}, {what}{kept}"


def _later(seconds: float) -> str:
    return f"{format_duration(seconds)} later than" if seconds else "later than"


def _trigger(trigger: Trigger) -> str:
    moments = {
        TriggerType.SEGMENTS: f"after every {trigger.threshold:g} segments",
        TriggerType.TIMER: f"every {format_duration(trigger.threshold)}",
        TriggerType.PUNCTUATION: f"when {trigger.predicate}",
        TriggerType.WATERMARK: f"when a segment is {_later(trigger.threshold)} its end",
        TriggerType.DRAINED: "when everything was seen",
    }
    through = "" if trigger.emit is None else f" through {trigger.emit}"
    return f"emitted {moments[trigger.on]}{through}, {trigger.refinement}"
