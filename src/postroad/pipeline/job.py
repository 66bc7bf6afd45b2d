"""A job as data: what flows where, and through which functions. Nothing here does anything.

The same structures come from Python, from a TOML or JSON file (`reading`) or from the builder
(`building`), and mean the same on every runner.
"""

from __future__ import annotations

import enum
from typing import Any, TypeAlias

import msgspec

Segment: TypeAlias = dict[str, Any]
"""The only thing that moves: a record with names."""

Edge: TypeAlias = tuple[str, str]

ALL = "all"
NONE = "none"


class TaskType(enum.StrEnum):
    """What a task is."""

    INPUT = "input"
    FUNCTION = "function"
    OUTPUT = "output"


class TaskKind(enum.StrEnum):
    """What the function of a task takes and returns."""

    SEGMENT = "segment"
    """A segment; nothing, one segment or several."""
    ARROW = "arrow"
    """A record batch; a record batch with a row for each row. For speed."""
    SQL = "sql"
    """Expressions of Spark SQL by name; the segment with their values. For speed."""
    GROUP = "group"
    """A key and all segments of a batch that have it; nothing, one segment or several. With `state`
    also what it returned for the key before, and it returns the new one besides."""
    DATAFRAME = "dataframe"
    """A DataFrame of Spark with all segments of a batch; another one. For joins, aggregations, and
    whatever else Spark can do. Segments are not tracked through it: those that come to it are
    acknowledged together, when the output of their batch is committed."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often and when a segment whose tree was not finished comes again."""

    attempts: int = 5
    """After so many failures it is a dead letter."""
    first_s: float = 1.0
    """Pause before the second attempt; it doubles from then on, with jitter."""
    max_s: float = 60.0
    """Longest pause."""


class SideInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a function is given besides its segments: a whole table, read by every worker."""

    connector: str
    options: dict[str, Any] = {}
    """What the connector wants to know."""
    key: str | None = None
    """With a key, a table by its values; otherwise a list of segments."""
    refresh_s: float | None = None
    """How old it may get before it is read again, between two batches; None is never."""


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of the catalog."""

    name: str
    type: TaskType
    doc: str = ""

    fn: str | None = None
    """Import path of the function, `package.module:function`; inputs and outputs may have one."""
    kind: TaskKind = TaskKind.SEGMENT
    params: dict[str, Any] = {}
    """What the function is called with besides: keyword arguments."""
    expressions: dict[str, str] = {}
    """For kind `sql`: what the keys of these names become."""
    columns: dict[str, str] = {}
    """For the kinds `sql` and `dataframe`: keys that the expressions or the function see, with
    their types as Spark calls them."""
    time_limit_s: float | None = None
    """Time for one segment; a function that takes longer has failed with it. By default it is the
    `pending_timeout_s` of the input. For kind `dataframe` it is the time for a batch, and by
    default there is no limit."""
    concurrency: int = 64
    """For functions that are `async def`: segments they are called with at a time, at most."""

    side_inputs: dict[str, SideInput] = {}
    """What the function is given besides, as keyword arguments of these names."""

    group_by: str | list[str] | None = None
    """Keys whose values decide which segments meet: a shuffle comes before this task."""

    state: bool = False
    """For kind `group`: whether the function keeps a state for each key, of plain data."""

    connector: str | None = None
    """For inputs and outputs: what kind of place it is."""
    options: dict[str, Any] = {}
    """What the connector wants to know."""
    schema: str | None = None
    """For the connector `spark`: columns with their types as Spark writes them, `n BIGINT`."""
    id: list[str] = []
    """For inputs of the connector `spark`: columns that tell a segment from all others. Without
    them its place in a file or topic does, or else all that it has."""

    batch_size: int = 10_000
    """For inputs: segments of one micro-batch for each core that works on it, at most."""
    max_pending: int = 100_000
    """For inputs: segments that are read and not done with, at most. A micro-batch has half of them
    at most, or `batch_size`: the next one is read while it is worked on."""
    pending_timeout_s: float = 60.0
    """For inputs: time for a segment and everything made of it, from its admission on."""
    retry: RetryPolicy = RetryPolicy()
    """For inputs: what happens when it is not enough."""


Predicate: TypeAlias = str | dict[str, Any]
"""An import path, or `{"and": [...]}`, `{"or": [...]}`, `{"not": ...}` of such."""


class FlowAction(enum.StrEnum):
    """What else a flow condition does."""

    RETRY = "retry"
    """The whole segment the input gave comes again, and this attempt of it counts for nothing."""


class FlowCondition(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"source": "from"}
):
    """Where what a task makes goes, if not to all that follow it."""

    source: str
    """The task, or `all`. Called `from` in data."""
    to: str | list[str]
    """Tasks that follow it, or `all`, or `none`."""
    predicate: Predicate | None = None
    """Called with the new segment, the one it was made of, and the parameters; none is always
    true. With `exceptions` it is called with the exception and the segment."""
    params: dict[str, Any] = {}
    """Keyword arguments of the predicate."""
    exceptions: bool = False
    """Whether it is about functions that raised, and not about what they return."""
    post_transform: str | None = None
    """Import path of a function that makes a segment of an exception and its segment."""
    exclude_keys: list[str] = []
    """Keys that are dropped on the way."""
    short_circuit: bool = False
    """Whether no condition after this one is looked at when it holds."""
    action: FlowAction | None = None


class WindowType(enum.StrEnum):
    """How time, or the segments themselves, are cut."""

    FIXED = "fixed"
    SLIDING = "sliding"
    SESSION = "session"
    GLOBAL = "global"


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Segments of a task gathered over a stretch of time, for each group."""

    name: str
    task: str
    type: WindowType
    aggregation: str
    """`count`, `sum`, `min`, `max`, `average`, `collect`, or the import path of an
    `Aggregation`."""
    key: str | None = None
    """What is summed, compared or collected; the whole segment where it makes sense."""
    time_key: str | None = None
    """The key with the time of a segment, in seconds; not needed for `global`."""
    range_s: float | None = None
    """Length of a fixed or sliding window."""
    slide_s: float | None = None
    """Distance of two sliding windows."""
    gap_s: float | None = None
    """Silence that ends a session."""
    allowed_lateness_s: float | None = None
    """How long after its end, by the latest time seen, a window still takes segments; then it is
    forgotten, and what comes later for it is dropped and counted. By default, as long as a
    `watermark` trigger waits; without one a week, or until the job ends if that is all that its
    triggers wait for."""


class TriggerType(enum.StrEnum):
    """When the contents of windows are emitted."""

    SEGMENTS = "segments"
    """After so many segments of a window."""
    TIMER = "timer"
    """So many seconds after the first change since the last time."""
    PUNCTUATION = "punctuation"
    """When a predicate says so of a segment."""
    WATERMARK = "watermark"
    """When a segment is seen that is later than the end of the window, plus some seconds."""
    DRAINED = "drained"
    """When a bounded job has seen everything."""


class Refinement(enum.StrEnum):
    """What is left in a window after it was emitted."""

    ACCUMULATING = "accumulating"
    DISCARDING = "discarding"


class Trigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the contents of a window go on, as new segments, to what follows its task."""

    window: str
    on: TriggerType
    threshold: float = 1.0
    """Segments, seconds, or how much later the watermark must be."""
    predicate: str | None = None
    """For `punctuation`."""
    refinement: Refinement = Refinement.ACCUMULATING
    emit: str | None = None
    """Import path of a function from an `Extent` to segments; without one the extent itself is
    the segment."""


class TaskLifecycle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hooks of a task: what is done before and after, wherever it runs."""

    task: str
    """A task, or `all`."""
    hooks: str
    """Import path of a class with some of the hooks."""
    params: dict[str, Any] = {}
    """What its hooks are called with besides."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a runner needs to know."""

    name: str
    workflow: list[Edge]
    catalog: list[Task]
    flow_conditions: list[FlowCondition] = []
    windows: list[Window] = []
    triggers: list[Trigger] = []
    lifecycles: list[TaskLifecycle] = []
    doc: str = ""
    metadata: dict[str, Any] = {}
    functions: dict[str, Any] = {}
    """Functions that cannot be imported, such as lambdas, under the names that the entries call
    them by. They are no data: only the builder makes such jobs, and they cannot be saved."""
