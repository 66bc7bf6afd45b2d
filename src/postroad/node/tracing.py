"""The recorder: makes the spans of a node, and remembers the newest of them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import msgspec

from postroad.core import Lifecycle, tracing
from postroad.core.errors import ConfigError, MissingExtraError, UsageError
from postroad.core.tracing import (
    NOOP_SPAN,
    SAMPLED,
    Attribute,
    NullSpan,
    Span,
    SpanContext,
    SpanKind,
    SpanLike,
)

if TYPE_CHECKING:
    from .telemetry import Telemetry

_STOP_GRACE_S = 5.0
_TEXT_CHARS_MAX = 256
_ATTRIBUTES_MAX = 16
_LINKS_MAX = 32
_IDS_AT_ONCE = 256
_NO_ID = "0" * 16
_time_ns = time.time_ns
_perf_counter_ns = time.perf_counter_ns
# What a trace id is compared with: its lower half.
_CHANCES = 1 << 64


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a node records its traces."""

    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """The share of traces beginning here that is recorded; who began the others has decided."""
    keep_spans: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    """Spans that are remembered for operators, the newest."""
    otlp: str | None = None
    """Where spans are sent to: the address of a collector of OpenTelemetry, by HTTP."""
    service_name: str | None = None
    """What the collector knows this node as; its name by default."""

    def __post_init__(self) -> None:
        if not 0 <= self.sample <= 1:
            raise ConfigError(f"sample={self.sample} must be between 0 and 1")
        if self.keep_spans < 1:
            raise ConfigError(f"keep_spans={self.keep_spans} must be 1 or more")
        if self.otlp is not None and not self.otlp.startswith(("http://", "https://")):
            raise ConfigError(f"otlp={self.otlp!r} must begin with http:// or https://")


class SpanLink(msgspec.Struct, frozen=True):
    """Another span that one has to do with, without being its child."""

    trace_id: str
    span_id: str


class SpanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A span that is over."""

    trace_id: str
    span_id: str
    parent_id: str | None
    """The span it is a part of, here or on another node; None if the trace began with it."""
    name: str
    kind: SpanKind
    layer: str
    node: str
    peer: str
    """The other side: a node, an address or a cell, as far as it is known."""
    start_ns: int
    """Since 1970."""
    end_ns: int
    error: str | None
    """What it failed with; None if it did not."""
    code: int
    """The number of that error, as `postroad.core.errors` has it; 0 if it has none."""
    attributes: dict[str, Attribute]
    links: list[SpanLink]

    @property
    def duration_s(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def is_ok(self) -> bool:
        """Whether it did not fail."""
        return self.error is None


class Recorder(Lifecycle):
    """Records the spans of one node, from `start` to `stop`.

        async with Recorder("alpha", TracingConfig(sample=0.1)) as recorder:
            ...
            for span in recorder.recent(20):
                print(span.trace_id, span.name, span.duration_s)

    Args:
        node: the name of the node; spans of others in this process are not taken.
        config: how much is recorded, and where it is sent.
    """

    def __init__(self, node: str, config: TracingConfig | None = None) -> None:
        self.node = node
        self.config = config or TracingConfig()
        self._below = round(self.config.sample * _CHANCES)
        self._ring: deque[Span] = deque(maxlen=self.config.keep_spans)
        self._telemetry: Telemetry | None = None
        self.tracks_context = False
        self.recorded = 0
        """Spans recorded so far, those that were forgotten since included."""

    # Life.

    async def start(self) -> None:
        """Record from now on."""
        _recorders.add(self)
        try:
            self._telemetry = _find_telemetry(self.config, self.node)
            self.tracks_context = self._telemetry is not None
        except BaseException:
            _recorders.remove(self)
            raise

    async def stop(self, grace: float = _STOP_GRACE_S) -> None:
        """Record nothing any more, and send what waits to be sent, for so many seconds at most."""
        _recorders.remove(self)
        telemetry, self._telemetry = self._telemetry, None
        if telemetry is not None:
            await asyncio.to_thread(telemetry.close, grace)

    # What is known.

    def spans(self, trace_id: str) -> list[SpanRecord]:
        """What this node remembers of a trace, in the order in which it began."""
        found = [span for span in list(self._ring) if span.context.trace_id == trace_id]
        return [_to_record(span) for span in sorted(found, key=lambda span: span.start_ns)]

    def recent(self, limit: int = 100) -> list[SpanRecord]:
        """The spans that ended last, the newest first."""
        newest_first = reversed(list(self._ring))
        return [_to_record(span) for span in islice(newest_first, max(limit, 0))]

    async def flush(self, timeout: float = _STOP_GRACE_S) -> bool:
        """Send what waits to be sent; False if that took too long."""
        if self._telemetry is None:
            return True
        return await asyncio.to_thread(self._telemetry.flush, timeout)

    # What layers call.

    def start_span(
        self,
        name: str,
        kind: SpanKind,
        layer: str,
        node: str,
        peer: str,
        parent: SpanContext | None,
        is_incoming: bool,
        links: Sequence[SpanContext],
    ) -> SpanLike:
        if self._telemetry is not None and not is_incoming:
            # The span of the user's own code, or the one that is current here.
            parent = self._telemetry.current() or parent
        if parent is not None:
            if not parent.flags & SAMPLED and self._telemetry is None:
                return NullSpan(parent, self)
            context = SpanContext(parent.trace_id, _new_id(), parent.flags, parent.tracestate)
        else:
            context = self._decide()
            if not context.flags and self._telemetry is None:
                return NullSpan(context, self)
        return Span(
            *(self, context, parent, name, kind, layer, node, peer, links),
            *(_time_ns(), _perf_counter_ns()),
        )

    def _decide(self) -> SpanContext:
        """The beginning of a trace, which is recorded or not."""
        high, low = _new_id(), _new_id()
        # Most record all of them, or none.
        is_sampled = self._below and (self._below >= _CHANCES or int(low, 16) < self._below)
        # A span that nobody records needs no id of its own, but others have to be told one.
        return SpanContext(
            high + low, _new_id() if is_sampled else low, SAMPLED if is_sampled else 0
        )

    def on_end(self, span: Span) -> None:
        # The time of day may be set back meanwhile.
        span.end_ns = span.start_ns + (_perf_counter_ns() - span.started or 1)
        if not span.context.flags & SAMPLED:
            return
        is_large = len(span.name) > _TEXT_CHARS_MAX or len(span.peer) > _TEXT_CHARS_MAX
        if is_large or span.attributes or span.links or span.error is not None:
            _bound(span)
        self.recorded += 1
        self._ring.append(span)
        if self._telemetry is not None:
            self._telemetry.take(span)

    def attach(self, span: SpanLike) -> object:
        return (
            None
            if self._telemetry is None or span.context is None
            else self._telemetry.enter(span.context)
        )

    def detach(self, entered: object) -> None:
        if self._telemetry is not None and entered is not None:
            self._telemetry.leave(entered)

    def __repr__(self) -> str:
        return f"<Recorder of {self.node}: {len(self._ring)} of {self.recorded} spans>"


class _Recorders:
    """The recorders of the nodes in this process: each takes the spans of its own."""

    tracks_context = False

    def __init__(self) -> None:
        self._by_node: dict[str, Recorder] = {}

    def add(self, recorder: Recorder) -> None:
        if recorder.node in self._by_node:
            raise UsageError(f"the spans of {recorder.node!r} are recorded already")
        if tracing.tracer is not None and tracing.tracer is not self:
            raise UsageError(f"spans are recorded by {tracing.tracer!r} already")
        self._by_node[recorder.node] = recorder
        tracing.set_tracer(self)

    def remove(self, recorder: Recorder) -> None:
        if self._by_node.get(recorder.node) is recorder:
            del self._by_node[recorder.node]
        if not self._by_node and tracing.tracer is self:
            tracing.set_tracer(None)

    def start_span(
        self,
        name: str,
        kind: SpanKind,
        layer: str,
        node: str,
        peer: str,
        parent: SpanContext | None,
        is_incoming: bool,
        links: Sequence[SpanContext],
    ) -> SpanLike:
        recorder = self._by_node.get(node)
        if recorder is None:
            return NOOP_SPAN
        return recorder.start_span(name, kind, layer, node, peer, parent, is_incoming, links)

    # Spans end with the recorder that made them.

    def on_end(self, span: Span) -> None:
        raise UsageError(f"{span!r} was not begun here")

    def attach(self, span: SpanLike) -> object:
        raise UsageError(f"{span!r} was not begun here")

    def detach(self, entered: object) -> None:
        raise UsageError("no span was begun here")


_recorders = _Recorders()


# Ids that nobody has yet. Threads share them, and taking one is a single step.
_ids: list[str] = []


def _new_id() -> str:
    """The id of a span, 16 hexadecimal digits; two of them are that of a trace."""
    while True:
        try:
            return _ids.pop()
        except IndexError:
            # Many at a time: the system is asked once for all of them.
            chance = os.urandom(8 * _IDS_AT_ONCE).hex()
            made = (chance[it : it + 16] for it in range(0, len(chance), 16))
            _ids.extend(it for it in made if it != _NO_ID)


# A process that was forked must not give the same ids as this one.
os.register_at_fork(after_in_child=_ids.clear)


def _find_telemetry(config: TracingConfig, node: str) -> Telemetry | None:
    """OpenTelemetry, if spans are to be sent or the user's own code has it."""
    if config.otlp is None and "opentelemetry.trace" not in sys.modules:
        return None
    try:
        from .telemetry import Telemetry
    except ImportError as error:
        raise MissingExtraError("telemetry", f"otlp={config.otlp!r}") from error
    return Telemetry(config.otlp, service_name=config.service_name or node, node=node)


def _bound(span: Span) -> None:
    """Cut off what would take too much memory."""
    span.name = span.name[:_TEXT_CHARS_MAX]
    span.peer = span.peer[:_TEXT_CHARS_MAX]
    if span.error is not None:
        span.error = span.error[:_TEXT_CHARS_MAX]
    if span.attributes:
        span.attributes = {
            name[:_TEXT_CHARS_MAX]: it[:_TEXT_CHARS_MAX] if isinstance(it, str) else it
            for name, it in islice(span.attributes.items(), _ATTRIBUTES_MAX)
        }
    if len(span.links) > _LINKS_MAX:
        span.links = span.links[:_LINKS_MAX]


def _to_record(span: Span) -> SpanRecord:
    return SpanRecord(
        trace_id=span.context.trace_id,
        span_id=span.context.span_id,
        parent_id=None if span.parent is None else span.parent.span_id,
        name=span.name,
        kind=span.kind,
        layer=span.layer,
        node=span.node,
        peer=span.peer,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        error=span.error,
        code=span.code,
        attributes=dict(span.attributes or {}),
        links=[SpanLink(link.trace_id, link.span_id) for link in span.links],
    )
