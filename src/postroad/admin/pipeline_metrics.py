"""How a job is doing, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from postroad.pipeline.desk import Standing
from postroad.pipeline.progress import Progress

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


def to_metrics(job: str, found: Progress | Standing) -> str:
    """What is known of a job: of one that runs, what its process has done too."""
    is_running = isinstance(found, Progress)
    lines = [*_metric(job, "up", "gauge", "Whether it runs.", int(is_running))]
    for name, text in _GAUGES.items():
        unit = name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name
        lines += _metric(job, unit, "gauge", text, getattr(found, name))
    if is_running:
        for name, text in _COUNTERS.items():
            lines += _metric(job, f"{name}_total", "counter", text, getattr(found, name))
    return "\n".join(lines) + "\n"


def _metric(job: str, name: str, type_: str, text: str, value: float) -> Iterator[str]:
    full = f"postroad_pipeline_{name}"
    label = job.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    yield f"# HELP {full} {text}"
    yield f"# TYPE {full} {type_}"
    yield f'{full}{{job="{label}"}} {value}'
