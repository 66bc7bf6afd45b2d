"""Data pipelines as data: every segment is accounted for."""

from .building import new_job
from .desk import Counts, Desk, Standing, look_at
from .explain import explain_mermaid, explain_text
from .job import (
    FlowAction,
    FlowCondition,
    Job,
    Lifecycle,
    Refinement,
    RetryPolicy,
    Segment,
    Task,
    TaskKind,
    TaskType,
    Trigger,
    TriggerType,
    Window,
    WindowType,
)
from .local import LocalRunner
from .media import (
    InputMedium,
    LinesInput,
    LinesOutput,
    OutputMedium,
    QueueInput,
    QueueOutput,
    SeqInput,
    SeqOutput,
    make_input,
    make_output,
)
from .pen import Pen
from .progress import Meter, Progress
from .reading import job_from_data, job_from_json, job_from_toml, job_to_data, job_to_json, read_job
from .records import Attempt, PenRoot, State
from .validation import Problem, find_problems

__all__ = [
    "Attempt",
    "Counts",
    "Desk",
    "FlowAction",
    "FlowCondition",
    "InputMedium",
    "Job",
    "Lifecycle",
    "LinesInput",
    "LinesOutput",
    "LocalRunner",
    "Meter",
    "OutputMedium",
    "Pen",
    "PenRoot",
    "Problem",
    "Progress",
    "QueueInput",
    "QueueOutput",
    "Refinement",
    "RetryPolicy",
    "Segment",
    "SeqInput",
    "SeqOutput",
    "Standing",
    "State",
    "Task",
    "TaskKind",
    "TaskType",
    "Trigger",
    "TriggerType",
    "Window",
    "WindowType",
    "explain_mermaid",
    "explain_text",
    "find_problems",
    "job_from_data",
    "job_from_json",
    "job_from_toml",
    "job_to_data",
    "job_to_json",
    "look_at",
    "make_input",
    "make_output",
    "new_job",
    "read_job",
]
