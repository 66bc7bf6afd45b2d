"""What tests of traces ask of the spans that nodes have recorded."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from postroad.core import tracing
from postroad.core.tracing import Span
from postroad.node.tracing import Recorder, SpanRecord, TracingConfig
from tests.support.deadlines import DEADLINE_S


class Traces:
    """Recorders of several nodes, as an operator sees them: together."""

    def __init__(self, recorders: dict[str, Recorder]) -> None:
        self.of = recorders

    def all(self) -> list[SpanRecord]:
        """What all nodes remember, the oldest first."""
        found = [span for recorder in self.of.values() for span in recorder.recent(100_000)]
        return sorted(found, key=lambda span: span.start_ns)

    def told(self) -> list[str]:
        """Layer, name and node of all, sorted."""
        return sorted(map(describe, self.all()))

    def find(self, told: str) -> SpanRecord:
        """The one span that is told like this."""
        found = [span for span in self.all() if describe(span) == told]
        assert len(found) == 1, f"{len(found)} of {told!r} in {self.told()}"
        return found[0]

    def line(self, *told: str) -> list[SpanRecord]:
        """Spans each of which is the parent of the next; fails if they are not."""
        spans = [self.find(it) for it in told]
        for parent, child in itertools.pairwise(spans):
            assert child.parent_id == parent.span_id, f"{describe(child)} in {self.told()}"
            assert child.trace_id == parent.trace_id
        return spans

    async def until(self, *told: str) -> None:
        """Wait until these spans have ended."""
        async with asyncio.timeout(DEADLINE_S):
            while missing := set(told) - set(self.told()):
                assert missing
                await asyncio.sleep(0.005)


def describe(span: SpanRecord) -> str:
    """A span in a line."""
    return f"{span.layer}: {span.name} @{span.node}"


def trace_ids(spans: Iterable[SpanRecord]) -> set[str]:
    return {span.trace_id for span in spans}


@asynccontextmanager
async def recording(*nodes: str, **settings: float) -> AsyncIterator[Traces]:
    """Record the spans of nodes."""
    config = TracingConfig(**settings)  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        recorders = {name: Recorder(name, config) for name in nodes}
        for recorder in recorders.values():
            await stack.enter_async_context(recorder)
        yield Traces(recorders)


def begun(node: str, name: str = "begin") -> Span:
    """A span to do things in."""
    span = tracing.start_outgoing_span("test", name, node=node)
    assert isinstance(span, Span)
    return span
