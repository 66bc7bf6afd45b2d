"""OpenTelemetry: spans of this node for a collector, and spans of the user's own code as parents.

What is sent waits in a bounded queue for a thread of OpenTelemetry. A collector that does not
answer costs the spans that no longer fit, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Token
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import trace as otel

from postroad._version import __version__
from postroad.core.errors import MissingExtraError
from postroad.core.tracing import Span, SpanContext, SpanKind

_QUEUED_SPANS_MAX = 4_096
_BATCH_SPANS_MAX = 512
_BATCH_DELAY_MS = 1_000
_EXPORT_TIMEOUT_S = 5.0
_TRACES_PATH = "/v1/traces"

_KINDS = {
    SpanKind.INTERNAL: otel.SpanKind.INTERNAL,
    SpanKind.CLIENT: otel.SpanKind.CLIENT,
    SpanKind.SERVER: otel.SpanKind.SERVER,
    SpanKind.PRODUCER: otel.SpanKind.PRODUCER,
    SpanKind.CONSUMER: otel.SpanKind.CONSUMER,
}


class Telemetry:
    """What OpenTelemetry and the recorder of a node tell each other."""

    def __init__(self, otlp: str | None, *, service_name: str, node: str) -> None:
        self._exporter = None if otlp is None else _Exporter(otlp, service_name, node)

    def current(self) -> SpanContext | None:
        """The innermost span, be it one of the user's own code or one that was entered here."""
        found = otel.get_current_span().get_span_context()
        if not found.is_valid:
            return None
        return SpanContext(
            f"{found.trace_id:032x}",
            f"{found.span_id:016x}",
            int(found.trace_flags) & 1,
            found.trace_state.to_header(),
        )

    def enter(self, context: SpanContext) -> object:
        """Have spans of the user's own code be children of one of this node."""
        inside = otel.set_span_in_context(otel.NonRecordingSpan(_to_otel(context)))
        return otel_context.attach(inside)

    def leave(self, entered: object) -> None:
        """Have them be so no longer."""
        assert isinstance(entered, Token)
        otel_context.detach(entered)

    def take(self, span: Span) -> None:
        """Have a span sent that is over."""
        if self._exporter is not None:
            self._exporter.take(span)

    def flush(self, timeout_s: float) -> bool:
        """Send what waits; False if that took too long."""
        return self._exporter is None or _within(timeout_s, self._exporter.flush)

    def close(self, timeout_s: float) -> None:
        """Send what waits, as far as the time allows, and end."""
        if self._exporter is not None and not _within(timeout_s, self._exporter.close):
            self._exporter.give_up()


class _Exporter:
    """Sends spans to a collector."""

    def __init__(self, otlp: str, service_name: str, node: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise MissingExtraError("telemetry", f"otlp={otlp!r}") from error
        is_base = urlsplit(otlp).path in ("", "/")
        endpoint = otlp.rstrip("/") + _TRACES_PATH if is_base else otlp
        self._sender = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
        self._processor = BatchSpanProcessor(
            self._sender,
            max_queue_size=_QUEUED_SPANS_MAX,
            schedule_delay_millis=_BATCH_DELAY_MS,
            max_export_batch_size=_BATCH_SPANS_MAX,
        )
        self._make = ReadableSpan
        self._resource = Resource.create(
            {"service.name": service_name, "service.instance.id": node}
        )
        self._scope = InstrumentationScope("postroad", __version__)

    def take(self, span: Span) -> None:
        attributes: dict[str, Any] = {
            "postroad.layer": span.layer,
            "postroad.node": span.node,
            **(span.attributes or {}),
        }
        if span.peer:
            attributes["postroad.peer"] = span.peer
        if span.code:
            attributes["postroad.error.code"] = span.code
        status = otel.Status(otel.StatusCode.OK)
        if span.error is not None:
            status = otel.Status(otel.StatusCode.ERROR, span.error)
        self._processor.on_end(
            self._make(
                span.name,
                context=_to_otel(span.context),
                parent=None if span.parent is None else _to_otel(span.parent, is_remote=True),
                resource=self._resource,
                attributes=attributes,
                links=[otel.Link(_to_otel(link, is_remote=True)) for link in span.links],
                kind=_KINDS[span.kind],
                status=status,
                start_time=span.start_ns,
                end_time=span.end_ns,
                instrumentation_scope=self._scope,
            )
        )

    def flush(self) -> None:
        self._processor.force_flush()

    def close(self) -> None:
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def give_up(self) -> None:
        """Have what is still being sent fail at once."""
        self._sender.shutdown()  # type: ignore[no-untyped-call]


def _within(timeout_s: float, work: Callable[[], None]) -> bool:
    """Have something done by a thread that nobody waits for any longer; whether it was done."""
    thread = threading.Thread(target=work, name="postroad traces", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def _to_otel(context: SpanContext, *, is_remote: bool = False) -> otel.SpanContext:
    return otel.SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(context.span_id, 16),
        is_remote=is_remote,
        trace_flags=otel.TraceFlags(context.flags),
        trace_state=otel.TraceState.from_header([context.tracestate])
        if context.tracestate
        else None,
    )
