"""Traces: which span the program is in, and how a message says which one it belongs to.

A span is one piece of work: a call, a message on its way, the handling of it. Spans of one trace
name their parents, also those of other nodes, whose context came with a message as W3C Trace
Context has it: `traceparent` and `tracestate`.

`tracer` is the switch, None unless somebody records. Where every message comes by, ask it first:

    if tracing.tracer is not None:
        ...

Elsewhere begin a span and let it be nothing if nobody records:

    with tracing.outgoing("services", "call math.add", node="alpha") as span:
        headers = tracing.inject(headers, span.context)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

import msgspec

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
SAMPLED = 1
"""The flag of traces that are recorded."""
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
    """What part a span plays between two programs."""

    INTERNAL = "internal"
    CLIENT = "client"
    SERVER = "server"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class SpanContext(msgspec.Struct, frozen=True, gc=False):
    """What others have to know of a span to go on with its trace."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    flags: int = SAMPLED
    tracestate: str = ""
    """What other vendors keep with the trace; passed on as it came."""

    @property
    def is_sampled(self) -> bool:
        """Whether the trace is recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """The context as W3C writes it."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(traceparent: str, tracestate: str = "") -> SpanContext | None:
    """Read a context that came with a message; None if it is none, or not a valid one."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if trace_id == _NO_TRACE or span_id == _NO_SPAN or (version == "00" and more is not None):
        return None
    # Flags that nobody has given a meaning must not be passed on.
    return SpanContext(trace_id, span_id, int(flags, 16) & SAMPLED, _check_state(tracestate))


def _check_state(tracestate: str) -> str:
    """A tracestate as it came, or an empty one if it breaks the rules."""
    if not tracestate or len(tracestate) > TRACESTATE_CHARS_MAX:
        return ""
    members = [member.strip(" \t") for member in tracestate.split(",")]
    named = [member for member in members if member]
    if len(members) > _TRACESTATE_MEMBERS_MAX or not all(map(_TRACESTATE_MEMBER.fullmatch, named)):
        return ""
    keys = {member.partition("=")[0] for member in named}
    return tracestate if len(keys) == len(named) else ""


def extract_context(headers: Mapping[str, Any] | None) -> SpanContext | None:
    """The context in the headers of a message; None if there is no valid one."""
    if not headers:
        return None
    traceparent, tracestate = headers.get(TRACEPARENT), headers.get(TRACESTATE)
    # Headers of foreign peers may hold anything.
    if not isinstance(traceparent, str):
        return None
    return parse_traceparent(traceparent, tracestate if isinstance(tracestate, str) else "")


def inject_context(
    headers: Mapping[str, Any] | None, context: SpanContext | None
) -> dict[str, Any] | None:
    """Headers with a context in them; those that were given if there is none."""
    if context is None:
        return headers if headers is None or isinstance(headers, dict) else dict(headers)
    told = {} if headers is None else dict(headers)
    told[TRACEPARENT] = context.traceparent
    if context.tracestate:
        told[TRACESTATE] = context.tracestate
    else:
        told.pop(TRACESTATE, None)
    return told


def remove_context(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """Headers without a context; None if nothing else is in them."""
    if not headers:
        return None
    kept = {name: it for name, it in headers.items() if name not in (TRACEPARENT, TRACESTATE)}
    return kept or None


class Tracer(Protocol):
    """Who makes spans and keeps them."""

    tracks_context: bool
    """Whether it wants to hear of `enter` and `leave`."""

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
        """Begin a span; without a parent it is the first of its trace."""

    def on_end(self, span: Span) -> None:
        """Take a span that is over."""

    def attach(self, span: Span) -> object:
        """The program goes on inside of a span; returns what `leave` needs."""

    def detach(self, entered: object) -> None:
        """The program has left a span."""


class Span:
    """One piece of work, recorded when it ends.

    As a context manager it is the current one inside, and ends with the block.
    """

    __slots__ = (
        "_entered",
        "_token",
        "attributes",
        "code",
        "context",
        "end_ns",
        "error",
        "kind",
        "layer",
        "links",
        "name",
        "node",
        "parent",
        "peer",
        "start_ns",
        "started",
        "tracer",
    )

    def __init__(
        self,
        tracer: Tracer,
        context: SpanContext,
        parent: SpanContext | None,
        name: str,
        kind: SpanKind,
        layer: str,
        node: str = "",
        peer: str = "",
        links: Sequence[SpanContext] = (),
        start_ns: int = 0,
        started: int = 0,
    ) -> None:
        self.tracer = tracer
        self.context = context
        self.parent = parent
        self.name = name
        self.kind = kind
        self.layer = layer
        self.node = node
        self.peer = peer
        self.links = links
        self.start_ns = start_ns
        # By a clock of the tracer that is never set back.
        self.started = started
        # 0 until it is over.
        self.end_ns = 0
        # What it failed with, and the code of that error; None and 0 if it did not.
        self.error: str | None = None
        self.code = 0
        # Made when it is needed: most spans have none.
        self.attributes: dict[str, Attribute] | None = None

    def set_attribute(self, name: str, value: Attribute) -> None:
        """Note something about the work."""
        if self.attributes is None:
            self.attributes = {}
        self.attributes[name] = value

    def end(self, error: BaseException | None = None) -> None:
        """The work is over; only the first time counts."""
        if self.end_ns:
            return
        if error is not None:
            self.error, self.code = _tell(error)
        self.tracer.on_end(self)

    def end_with_error(self, text: str, code: int = 0) -> None:
        """The work is over, and what came of it is a failure."""
        if not self.end_ns:
            self.error, self.code = text, code
            self.tracer.on_end(self)

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        if self.tracer.tracks_context:
            self._entered = self.tracer.attach(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.tracer.tracks_context:
            self.tracer.detach(self._entered)
        _current.reset(self._token)
        self.end(error)

    @property
    def scope(self) -> SpanScope:
        """Makes it the current one in a block, and lets it go on after that."""
        return SpanScope(self)

    def __repr__(self) -> str:
        state = "under way" if not self.end_ns else "failed" if self.error else "ended"
        return f"<Span {self.name} of {self.layer} {state}>"


class NonRecordingSpan(Span):
    """Work of a trace that is not recorded: it tells others of the trace, and leaves nothing."""

    __slots__ = ()

    def __init__(self, tracer: Tracer, context: SpanContext) -> None:
        self.tracer = tracer
        self.context = context
        # It was over before it began: nobody looks at its end.
        self.end_ns = 1

    def set_attribute(self, name: str, value: Attribute) -> None:
        """Forget it."""

    def __repr__(self) -> str:
        return "<Unrecorded span>"


def _tell(error: BaseException) -> tuple[str, int]:
    """An error in words, and its code; whatever users raise, telling of it must not."""
    try:
        code = getattr(error, "code", 0)
        text = f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__, 0
    return text, code if isinstance(code, int) else 0


class SpanScope:
    """A block in which a span is the current one."""

    __slots__ = ("_entered", "_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> None:
        span = self._span
        self._token = _current.set(span)
        if span.tracer.tracks_context:
            self._entered = span.tracer.attach(span)

    def __exit__(self, *_: object) -> None:
        tracer = self._span.tracer
        if tracer.tracks_context:
            tracer.detach(self._entered)
        _current.reset(self._token)


class NoopScope:
    """A block in which nothing is different."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class SuppressedScope:
    """A block in which this node begins no spans: what it does there, it does for itself."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _current.set(NOOP_SPAN)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


class NoopSpan:
    """Work that nobody records."""

    __slots__ = ()

    context: SpanContext | None = None
    scope: Final = NoopScope()

    def set_attribute(self, name: str, value: Attribute) -> None:
        """Forget it."""

    def end(self, error: BaseException | None = None) -> None:
        """Nothing ends."""

    def end_with_error(self, text: str, code: int = 0) -> None:
        """Nothing ends."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class PropagatingSpan(NoopSpan):
    """A part of work that nobody records, for which others are told the trace of the whole."""

    __slots__ = ("context",)

    def __init__(self, context: SpanContext) -> None:
        self.context = context


SpanLike: TypeAlias = Span | NoopSpan

NOOP_SPAN: Final = NoopSpan()

tracer: Tracer | None = None
"""Who records spans in this process; None if nobody does."""

# No span where nothing shall be traced, None where nobody has begun anything.
_current: ContextVar[SpanLike | None] = ContextVar("postroad_span", default=None)


def set_tracer(to: Tracer | None) -> None:
    """Have spans recorded by somebody, or by nobody any more."""
    global tracer
    tracer = to


def current_span() -> Span | None:
    """The span that the program is in."""
    span = _current.get()
    return span if tracer is not None and isinstance(span, Span) else None


def scope(span: Span | None) -> SpanScope | SuppressedScope:
    """A block that goes on where the program was when that span was current; untraced if none."""
    return SuppressedScope() if span is None else SpanScope(span)


def current_span_context() -> SpanContext | None:
    """The context of the span that the program is in."""
    span = current_span()
    return None if span is None else span.context


def detached_context() -> Context:
    """A copy of the context of whoever asks, outside of all spans: for work that outlives them."""
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
    """Begin work that this node starts by itself: a child of the current span.

    Outside of any, headers that the user has written say what it belongs to.
    """
    within = _current.get()
    if tracer is None or within is NOOP_SPAN:
        return NOOP_SPAN
    if type(within) is NonRecordingSpan:
        return PropagatingSpan(within.context)
    parent = extract_context(headers) if within is None else within.context
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
    """Begin work that a message asks for: a child of what came with it, and of nothing else."""
    if tracer is None:
        return NOOP_SPAN
    return tracer.start_span(name, kind, layer, node, peer, parent, True, links)
