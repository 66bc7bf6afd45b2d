"""Data pipelines as data: every segment is accounted for."""

from postroad.pipeline.builder import JobBuilder, new_job
from postroad.pipeline.connectors import (
    InputConnector,
    JsonLinesInput,
    JsonLinesOutput,
    MemoryInput,
    MemoryOutput,
    OutputConnector,
    QueueInput,
    QueueOutput,
    make_input,
    make_output,
)
from postroad.pipeline.coordinator.coordinator import (
    JobCoordinator,
    JobCounters,
    JobStatus,
    read_job_status,
)
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.progress import JobProgress, ProgressSampler
from postroad.pipeline.coordinator.records import RootState, SegmentAttempt, StoredRoot
from postroad.pipeline.explain import explain_mermaid, explain_text
from postroad.pipeline.job import (
    FlowAction,
    FlowCondition,
    Job,
    Refinement,
    RetryPolicy,
    Segment,
    SideInput,
    Task,
    TaskKind,
    TaskLifecycle,
    TaskType,
    Trigger,
    TriggerType,
    Window,
    WindowType,
)
from postroad.pipeline.job_files import (
    job_from_data,
    job_from_json,
    job_from_toml,
    job_to_data,
    job_to_json,
    load_job,
)
from postroad.pipeline.local_runner import LocalRunner
from postroad.pipeline.validation import JobIssue, find_problems

__all__ = [
    "FlowAction",
    "FlowCondition",
    "InputConnector",
    "Job",
    "JobBuilder",
    "JobCoordinator",
    "JobCounters",
    "JobIssue",
    "JobProgress",
    "JobStatus",
    "JobStore",
    "JsonLinesInput",
    "JsonLinesOutput",
    "LocalRunner",
    "MemoryInput",
    "MemoryOutput",
    "OutputConnector",
    "ProgressSampler",
    "QueueInput",
    "QueueOutput",
    "Refinement",
    "RetryPolicy",
    "RootState",
    "Segment",
    "SegmentAttempt",
    "SideInput",
    "StoredRoot",
    "Task",
    "TaskKind",
    "TaskLifecycle",
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
    "load_job",
    "make_input",
    "make_output",
    "new_job",
    "read_job_status",
]
