"""The spans of a job's batches."""

from __future__ import annotations

from collections.abc import Iterable

from postroad.core import tracing
from postroad.core.tracing import SpanContext, SpanKind, SpanLike

# More links than this tell nobody anything.
LINKS_MAX = 32


class BatchSpans:
    """The span of the batch that a job is at.

    Args:
        job: the name of the job.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._span: SpanLike | None = None
        self._links: list[SpanContext] = []

    def begin(self, node: str, links: Iterable[SpanContext] = ()) -> None:
        """Something was admitted; links are the contexts of letters in it."""
        if tracing.tracer is None:
            return
        room = LINKS_MAX - len(self._links)
        self._links += [link for link, _ in zip(links, range(room), strict=False)]
        if self._span is None:
            # The list still grows, with what is admitted to the same batch.
            self._span = tracing.start_incoming_span(
                "pipeline",
                f"batch {self._job}",
                None,
                SpanKind.CONSUMER,
                node=node,
                links=self._links,
            )

    def end(self, node: str, batch: int, *, segments: int, failed: int, result: str) -> None:
        """A batch was settled, or found to be settled."""
        if tracing.tracer is None:
            return
        self.begin(node)
        span, self._span, self._links = self._span, None, []
        assert span is not None
        span.set_attribute("batch", batch)
        span.set_attribute("segments", segments)
        span.set_attribute("failed", failed)
        span.set_attribute("settled", result)
        span.end()
