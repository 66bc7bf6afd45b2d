"""The rules of windows and triggers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from postroad.pipeline.job import TaskKind, TaskType, Trigger, TriggerType, Window, WindowType
from postroad.pipeline.validation.flow_conditions import unknown_task
from postroad.pipeline.validation.issues import (
    JobIssue,
    bad_import_path,
    bad_name,
    bad_numbers,
    default_of,
    is_import_path,
    is_local_function,
    suggestion,
)
from postroad.pipeline.validation.parsing import ParsedJob

AGGREGATIONS = ("average", "collect", "count", "max", "min", "sum")
AGGREGATIONS_OF_A_KEY = ("average", "max", "min", "sum")

NUMBERS = ("range_s", "slide_s", "gap_s", "allowed_lateness_s")
REQUIRED = {
    WindowType.FIXED: ("time_key", "range_s"),
    WindowType.SLIDING: ("time_key", "range_s", "slide_s"),
    WindowType.SESSION: ("time_key", "gap_s"),
    WindowType.GLOBAL: (),
}
OPTIONAL = {
    WindowType.FIXED: ("allowed_lateness_s",),
    WindowType.SLIDING: ("allowed_lateness_s",),
    WindowType.SESSION: ("allowed_lateness_s",),
    WindowType.GLOBAL: (),
}
KEYS_OF_TYPES = ("time_key", *NUMBERS)
# They see all segments of a batch already.
WITHOUT_WINDOWS = (TaskKind.DATAFRAME, TaskKind.GROUP)
# A threshold means nothing to the others.
COUNTING = (TriggerType.SEGMENTS, TriggerType.TIMER, TriggerType.WATERMARK)


def window_problems(draft: ParsedJob) -> Iterator[JobIssue]:
    """Names first, then every window by itself."""
    for name, count in Counter(draft.window_names).items():
        if count > 1:
            yield JobIssue(f"window {name!r}", f"is there {count} times", ("name",))
        yield from bad_name(f"window {name!r}", name)
    types = {task.name: task.type for _, task in draft.tasks}
    kinds = {task.name: task.kind for _, task in draft.tasks}
    for label, window in draft.windows:
        yield from unknown_task(draft, label, "task", window.task)
        if types.get(window.task, TaskType.FUNCTION) is not TaskType.FUNCTION:
            text = f"task {window.task!r} is not a function but an {types[window.task]}"
            yield JobIssue(label, text, ("task",))
        if kinds.get(window.task) in WITHOUT_WINDOWS:
            text = (
                f"task {window.task!r} is of kind {kinds[window.task].value!r}: it has no windows"
            )
            yield JobIssue(label, text, ("task",))
        yield from _keys_of_its_type(label, window)
        yield from bad_numbers(label, window, NUMBERS)
        yield from _aggregation_problems(label, window)


def _keys_of_its_type(label: str, window: Window) -> Iterator[JobIssue]:
    required = REQUIRED[window.type]
    for key in KEYS_OF_TYPES:
        value = getattr(window, key)
        if key in required and (value is None or value == ""):
            yield JobIssue(label, f"a {window.type} window needs {key}", (key, "type"))
        if value is not None and key not in (*required, *OPTIONAL[window.type]):
            yield JobIssue(label, f"a {window.type} window has no {key}", (key, "type"))
    if (window.slide_s or 0) > (window.range_s or math.inf):
        text = f"slide_s={window.slide_s} is more than range_s={window.range_s}"
        yield JobIssue(label, text, ("slide_s", "range_s"))


def _aggregation_problems(label: str, window: Window) -> Iterator[JobIssue]:
    word = window.aggregation
    if word not in AGGREGATIONS and not (is_import_path(word) or is_local_function(word)):
        near = suggestion(word, AGGREGATIONS)
        text = f"aggregation {word!r} is neither known nor an import path{near}"
        yield JobIssue(label, text, ("aggregation",))
    if word in AGGREGATIONS_OF_A_KEY and window.key is None:
        yield JobIssue(label, f"aggregation {word!r} needs key", ("aggregation", "key"))
    if window.key == "":
        yield JobIssue(label, "key must not be empty", ("key",))


def trigger_problems(draft: ParsedJob) -> Iterator[JobIssue]:
    """Every trigger by itself, and whether it can ever happen."""
    types = {window.name: window.type for _, window in draft.windows}
    for label, trigger in draft.triggers:
        yield from _unknown_window(draft, label, trigger.window)
        if trigger.on is TriggerType.WATERMARK and types.get(trigger.window) is WindowType.GLOBAL:
            text = "a global window has no end that a watermark could pass"
            yield JobIssue(label, text, ("on", "window"))
        yield from _threshold_problems(label, trigger)
        yield from _punctuation_problems(label, trigger)
        yield from bad_import_path(label, "emit", trigger.emit)


def _unknown_window(draft: ParsedJob, label: str, name: str) -> Iterator[JobIssue]:
    if name not in draft.window_names and "windows" not in draft.unreadable:
        text = f"there is no window {name!r}{suggestion(name, draft.window_names)}"
        yield JobIssue(label, text, ("window",))


def _threshold_problems(label: str, trigger: Trigger) -> Iterator[JobIssue]:
    keys, threshold = ("threshold", "on"), trigger.threshold
    if trigger.on not in COUNTING:
        if threshold != default_of(Trigger, "threshold"):
            yield JobIssue(label, f"threshold means nothing for {trigger.on.value!r}", keys)
    elif trigger.on is TriggerType.WATERMARK:
        if not 0 <= threshold < math.inf:
            yield JobIssue(
                label, f"threshold={threshold!r} must be a finite number, 0 or more", keys
            )
    elif not 0 < threshold < math.inf:
        yield JobIssue(label, f"threshold={threshold!r} must be a finite number above 0", keys)
    elif trigger.on is TriggerType.SEGMENTS and threshold != int(threshold):
        yield JobIssue(label, f"threshold={threshold!r} must be a whole number of segments", keys)


def _punctuation_problems(label: str, trigger: Trigger) -> Iterator[JobIssue]:
    yield from bad_import_path(label, "predicate", trigger.predicate)
    is_punctuation = trigger.on is TriggerType.PUNCTUATION
    if is_punctuation and trigger.predicate is None:
        yield JobIssue(label, "'punctuation' needs a predicate", ("predicate", "on"))
    if not is_punctuation and trigger.predicate is not None:
        yield JobIssue(label, "predicate is for 'punctuation' only", ("predicate", "on"))
