"""Tracing: the current span, and trace context in messages (W3C Trace Context).

A span is one traced operation: a call, a message in transit, the handling of a message. Spans of
one trace name their parents, also those of other nodes, whose context arrives with a message as
`traceparent` and `tracestate`.

`tracer` is None while nothing is recorded. On hot paths check it first:

    if tracing.tracer is not None:
        ...

Elsewhere start a span, which does nothing without a tracer:

    with tracing.start_outgoing_span("services", "call math.add", node="alpha") as span:
        headers = tracing.inject_context(headers, span.context)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, ContextVar, copy_context
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

import msgspec

from postroad.core.log_throttle import describe_error

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
SAMPLED = 1
"""Trace flag of sampled traces."""
TRACESTATE_CHARS_MAX = 512

_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16
# Versions after 00 may have more fields; version ff is forbidden.
_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)
_TRACESTATE_MEMBERS_MAX = 32
_TRACESTATE_MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)

Attribute: TypeAlias = str | int | float | bool


class SpanKind(StrEnum):
    """Role of a span between two processes (OpenTelemetry `SpanKind`)."""

    INTERNAL = "internal"
    CLIENT = "client"
    SERVER = "server"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class SpanContext(msgspec.Struct, frozen=True, gc=False):
    """The part of a span that is propagated to other nodes."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    flags: int = SAMPLED
    tracestate: str = ""
    """Vendor data of the trace; propagated unchanged."""

    @property
    def is_sampled(self) -> bool:
        """Whether the trace is sampled."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """The context as a W3C `traceparent` value."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(traceparent: str, tracestate: str = "") -> SpanContext | None:
    """Parse the context of a message; return None if it is not valid."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if trace_id == _NO_TRACE or span_id == _NO_SPAN or (version == "00" and more is not None):
        return None
    # The specification forbids propagating flags without a defined meaning.
    return SpanContext(trace_id, span_id, int(flags, 16) & SAMPLED, _check_state(tracestate))


def _check_state(tracestate: str) -> str:
    """Return the tracestate unchanged, or an empty one if it is not valid."""
    if not tracestate or len(tracestate) > TRACESTATE_CHARS_MAX:
        return ""
    members = [member.strip(" \t") for member in tracestate.split(",")]
    named = [member for member in members if member]
    if len(members) > _TRACESTATE_MEMBERS_MAX or not all(map(_TRACESTATE_MEMBER.fullmatch, named)):
        return ""
    keys = {member.partition("=")[0] for member in named}
    return tracestate if len(keys) == len(named) else ""


def extract_context(headers: Mapping[str, Any] | None) -> SpanContext | None:
    """Return the context in the headers of a message, or None if there is no valid one."""
    if not headers:
        return None
    traceparent, tracestate = headers.get(TRACEPARENT), headers.get(TRACESTATE)
    # Header values of other implementations may have any type.
    if not isinstance(traceparent, str):
        return None
    return parse_traceparent(traceparent, tracestate if isinstance(tracestate, str) else "")


def inject_context(
    headers: Mapping[str, Any] | None, context: SpanContext | None
) -> dict[str, Any] | None:
    """Return the headers with the context added; unchanged if the context is None."""
    if context is None:
        return headers if headers is None or isinstance(headers, dict) else dict(headers)
    injected = {} if headers is None else dict(headers)
    injected[TRACEPARENT] = context.traceparent
    if context.tracestate:
        injected[TRACESTATE] = context.tracestate
    else:
        injected.pop(TRACESTATE, None)
    return injected


def remove_context(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the headers without trace context; None if no others are left."""
    if not headers:
        return None
    return {
        name: value for name, value in headers.items() if name not in (TRACEPARENT, TRACESTATE)
    } or None


class Tracer(Protocol):
    """Creates and exports spans."""

    tracks_context: bool
    """Whether `attach` and `detach` must be called."""

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
        """Start a span; without a parent it is the root of a new trace."""

    def on_end(self, span: Span) -> None:
        """Record a finished span."""

    def attach(self, span: SpanLike) -> object:
        """Make a span current in the tracing library; return the token for `detach`."""

    def detach(self, token: object) -> None:
        """Undo an `attach`."""


class Span(msgspec.Struct, eq=False, weakref=True):
    """One traced operation, recorded when it ends.

    As a context manager it is the current span inside the block and ends with it.
    """

    tracer: Tracer
    context: SpanContext
    parent: SpanContext | None
    name: str
    kind: SpanKind
    layer: str
    node: str = ""
    peer: str = ""
    links: Sequence[SpanContext] = ()
    start_ns: int = 0
    started: int = 0
    """Monotonic clock of the tracer."""
    end_ns: int = 0
    """0 until the span has ended."""
    error: str | None = None
    code: int = 0
    """Text and code of the error that ended the span; None and 0 without one."""
    attributes: dict[str, Attribute] | None = None
    """Created on demand: most spans have none."""
    _scope: SpanScope | None = None

    def set_attribute(self, name: str, value: Attribute) -> None:
        """Set an attribute of the span."""
        if self.attributes is None:
            self.attributes = {}
        self.attributes[name] = value

    def end(self, error: BaseException | None = None) -> None:
        """End the span; later calls have no effect."""
        if self.end_ns:
            return
        if error is not None:
            self.error, self.code = _describe_error(error)
        self.tracer.on_end(self)

    def end_with_error(self, text: str, code: int = 0) -> None:
        """End the span as failed; later calls have no effect."""
        if not self.end_ns:
            self.error, self.code = text, code
            self.tracer.on_end(self)

    @property
    def scope(self) -> SpanScope:
        """A scope that makes the span current in a block without ending it."""
        return SpanScope(self)

    def __enter__(self) -> Self:
        self._scope = SpanScope(self)
        self._scope.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._scope is not None:
            self._scope.__exit__()
        self.end(error)

    def __repr__(self) -> str:
        state = "under way" if not self.end_ns else "failed" if self.error else "ended"
        return f"<Span {self.name} of {self.layer} {state}>"


def _describe_error(error: BaseException) -> tuple[str, int]:
    """Return the text and code of an error; never raises, whatever its attributes do."""
    try:
        code = getattr(error, "code", 0)
    except Exception:
        code = 0
    return describe_error(error), code if isinstance(code, int) else 0


class NullSpan:
    """A span that records nothing and propagates a context, if it has one.

    One with a tracer stands for a span that is not sampled: inside its block it is the current
    span, so that its children are not sampled either.
    """

    __slots__ = ("_scope", "context", "tracer")

    def __init__(self, context: SpanContext | None = None, tracer: Tracer | None = None) -> None:
        self.context = context
        self.tracer = tracer

    def set_attribute(self, name: str, value: Attribute) -> None:
        """Do nothing: the span is not recorded."""

    def end(self, error: BaseException | None = None) -> None:
        """Do nothing: the span is not recorded."""

    def end_with_error(self, text: str, code: int = 0) -> None:
        """Do nothing: the span is not recorded."""

    @property
    def scope(self) -> AbstractContextManager[None]:
        """A scope that makes the span current in a block, if it has a tracer."""
        return _UNCHANGED if self.tracer is None else SpanScope(self)

    def __enter__(self) -> Self:
        if self.tracer is not None:
            self._scope = SpanScope(self)
            self._scope.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self.tracer is not None:
            self._scope.__exit__()

    def __repr__(self) -> str:
        return "<Unrecorded span>"


class SpanScope(AbstractContextManager[None]):
    """Scope in which a span is current; with NOOP_SPAN, no spans are started in it."""

    __slots__ = ("_attached", "_span", "_token")

    def __init__(self, span: SpanLike) -> None:
        self._span = span

    def __enter__(self) -> None:
        span = self._span
        self._token = _current.set(span)
        if span.tracer is not None and span.tracer.tracks_context:
            self._attached = span.tracer.attach(span)

    def __exit__(self, *_: object) -> None:
        tracer = self._span.tracer
        if tracer is not None and tracer.tracks_context:
            tracer.detach(self._attached)
        _current.reset(self._token)


SpanLike: TypeAlias = Span | NullSpan

NOOP_SPAN: Final = NullSpan()
_UNCHANGED: Final = nullcontext()

tracer: Tracer | None = None
"""The tracer of this process; None while nothing is recorded."""

# NOOP_SPAN where tracing is suppressed, None outside of all spans.
_current: ContextVar[SpanLike | None] = ContextVar("postroad_span", default=None)


def set_tracer(new_tracer: Tracer | None) -> None:
    """Install a tracer, or remove it with None."""
    global tracer
    tracer = new_tracer


def current_span() -> SpanLike | None:
    """Return the current span, or None."""
    span = _current.get()
    return None if tracer is None or span is NOOP_SPAN else span


def scope(span: SpanLike | None) -> SpanScope:
    """Return a scope in which the span is current; without a span, tracing is suppressed."""
    return SpanScope(NOOP_SPAN if span is None else span)


def current_span_context() -> SpanContext | None:
    """Return the context of the current span, or None."""
    span = current_span()
    return None if span is None else span.context


def detached_context() -> Context:
    """Return a copy of the caller's context outside of all spans, for work that outlives them."""
    context = copy_context()
    context.run(_current.set, None)
    return context


def start_outgoing_span(
    layer: str,
    name: str,
    kind: SpanKind = SpanKind.CLIENT,
    *,
    node: str,
    peer: str = "",
    headers: Mapping[str, str] | None = None,
) -> SpanLike:
    """Start a span for an operation of this node: a child of the current span.

    Outside of all spans, the parent is the trace context in the user's headers, if any.
    """
    current = _current.get()
    if tracer is None or current is NOOP_SPAN:
        return NOOP_SPAN
    if isinstance(current, NullSpan):
        return NullSpan(current.context)
    parent = extract_context(headers) if current is None else current.context
    return tracer.start_span(name, kind, layer, node, peer, parent, False, ())


def start_incoming_span(
    layer: str,
    name: str,
    parent: SpanContext | None,
    kind: SpanKind = SpanKind.SERVER,
    *,
    node: str,
    peer: str = "",
    links: Sequence[SpanContext] = (),
) -> SpanLike:
    """Start a span for a received message: a child of the context in it, of nothing else."""
    if tracer is None:
        return NOOP_SPAN
    return tracer.start_span(name, kind, layer, node, peer, parent, True, links)
