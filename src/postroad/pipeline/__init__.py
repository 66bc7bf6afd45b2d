"""Data pipelines as data: every segment is accounted for."""

from .building import new_job
from .desk import JobCounters, JobCoordinator, JobStatus, read_job_status
from .explain import explain_mermaid, explain_text
from .job import (
    FlowAction,
    FlowCondition,
    Job,
    TaskLifecycle,
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
    InputConnector,
    JsonLinesInput,
    JsonLinesOutput,
    OutputConnector,
    QueueInput,
    QueueOutput,
    MemoryInput,
    MemoryOutput,
    make_input,
    make_output,
)
from .pen import JobStore
from .progress import ProgressSampler, JobProgress
from .reading import job_from_data, job_from_json, job_from_toml, job_to_data, job_to_json, load_job
from .records import SegmentAttempt, StoredRoot, RootState
from .validation import JobIssue, find_problems

__all__ = [
    "SegmentAttempt",
    "JobCounters",
    "JobCoordinator",
    "FlowAction",
    "FlowCondition",
    "InputConnector",
    "Job",
    "TaskLifecycle",
    "JsonLinesInput",
    "JsonLinesOutput",
    "LocalRunner",
    "ProgressSampler",
    "OutputConnector",
    "JobStore",
    "StoredRoot",
    "JobIssue",
    "JobProgress",
    "QueueInput",
    "QueueOutput",
    "Refinement",
    "RetryPolicy",
    "Segment",
    "MemoryInput",
    "MemoryOutput",
    "JobStatus",
    "RootState",
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
    "read_job_status",
    "make_input",
    "make_output",
    "new_job",
    "load_job",
]
