"""The text format of Prometheus, read back by its own parser."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from postroad.admin.exposition import Exposition
from postroad.admin.pipeline_metrics import add_job, to_metrics
from postroad.pipeline.coordinator.progress import JobStatus


def test_samples_of_a_metric_stand_together() -> None:
    metrics = Exposition()
    metrics.gauge("depth", "How deep.", 1, queue="a")
    metrics.counter("sent", "How many.", 2)
    metrics.gauge("depth", "How deep.", 3, queue="b")
    assert metrics.render().splitlines() == [
        "# HELP postroad_depth How deep.",
        "# TYPE postroad_depth gauge",
        'postroad_depth{queue="a"} 1',
        'postroad_depth{queue="b"} 3',
        "# HELP postroad_sent_total How many.",
        "# TYPE postroad_sent_total counter",
        "postroad_sent_total 2",
    ]


@given(
    label=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=30),
    text=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=30),
    value=st.floats() | st.integers(-(2**53), 2**53) | st.booleans(),
)
def test_anything_can_be_read_again(label: str, text: str, value: float) -> None:
    metrics = Exposition()
    metrics.gauge("thing", text, value, name=label, other="x")
    [family] = text_string_to_metric_families(metrics.render())
    [sample] = family.samples
    assert sample.labels == {"name": label, "other": "x"}
    assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))


def test_job_that_does_not_run() -> None:
    metrics = Exposition()
    add_job(metrics, "totals", None)
    assert 'postroad_pipeline_up{job="totals"} 0' in metrics.render()
    found = JobStatus(pending=1, waiting=2, dead=3, unpublished=0, oldest_s=4.5)
    text = to_metrics("totals", found)
    assert 'postroad_pipeline_dead{job="totals"} 3' in text
    assert 'postroad_pipeline_oldest_seconds{job="totals"} 4.5' in text
    assert "_total" not in text
