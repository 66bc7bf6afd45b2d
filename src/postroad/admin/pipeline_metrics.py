"""How a job is doing, in the text format of Prometheus."""

from __future__ import annotations

from postroad.pipeline.coordinator.progress import JobProgress, JobStatus

from .exposition import Exposition

_COUNTERS = {
    "delivered": "Segments that were delivered for the first time.",
    "acked": "Segments that were done with, and everything made of them.",
    "failed": "Segments that were not, each time.",
    "replayed": "Segments that were delivered again.",
    "batches": "Batches that were settled.",
    "restarts": "Times that Spark failed and was started again.",
}
_GAUGES = {
    "pending": "Segments that are delivered and not settled.",
    "waiting": "Segments that come again later.",
    "dead": "Dead letters.",
    "unpublished": "Parts of batches that are settled, and which an output cannot take now.",
    "oldest_s": "Age of the oldest delivery that is not settled.",
}
_TASK_COUNTERS = {
    "processed": "Segments that a task was given.",
    "failed": "Segments that failed in a task.",
}
_LATENCY = "Average time in the function of a task for one segment."
_LATE = "Segments that came too late for their window."


def to_metrics(job: str, found: JobProgress | JobStatus) -> str:
    """What is known of a job: of one that runs, what its process has done too."""
    metrics = Exposition()
    add_job(metrics, job, found)
    return metrics.render()


def add_job(metrics: Exposition, job: str, found: JobProgress | JobStatus | None) -> None:
    """Likewise, among other metrics; None if nothing is known but that it does not run."""
    metrics.gauge("pipeline_up", "Whether it runs.", int(isinstance(found, JobProgress)), job=job)
    if found is None:
        return
    for name, text in _GAUGES.items():
        unit = name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name
        metrics.gauge(f"pipeline_{unit}", text, getattr(found, name), job=job)
    if isinstance(found, JobProgress):
        for name, text in _COUNTERS.items():
            metrics.counter(f"pipeline_{name}", text, getattr(found, name), job=job)
        for task, it in found.tasks.items():
            for name, text in _TASK_COUNTERS.items():
                value = getattr(it, name)
                metrics.counter(f"pipeline_task_{name}", text, value, job=job, task=task)
            metrics.gauge(
                "pipeline_task_latency_seconds", _LATENCY, it.latency_s, job=job, task=task
            )
        for window, late in found.late.items():
            metrics.counter("pipeline_late", _LATE, late, job=job, window=window)
