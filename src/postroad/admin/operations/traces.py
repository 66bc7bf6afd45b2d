"""Traces: what one wish led to, over several nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from postroad.admin.errors import NotFound
from postroad.core.errors import PostroadError, UsageError
from postroad.node import Layer, Node
from postroad.node.tracing import Recorder, SpanRecord

from .limits import Limit
from .office import Office
from .table import operation

# Spans that are looked at for each trace that is listed.
_SPANS_EACH = 20
_SPANS_MAX = 10_000
_ASK_S = 2.0


class TraceView(msgspec.Struct, frozen=True, kw_only=True):
    """A trace, as far as this node knows it."""

    id: str
    root: str
    """What it began with, or the first that is known of it."""
    started_at: float
    elapsed_ms: float
    spans: int
    nodes: list[str]
    is_error: bool
    """Whether something in it failed."""


class SpanView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a trace."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: str
    """`client`, `server`, `producer`, `consumer` or `internal`."""
    layer: str
    node: str
    peer: str
    """The other side, as far as it is known."""
    started_at: float
    elapsed_ms: float
    error: str | None
    code: int
    """The number of that error; 0 if it has none."""
    attributes: dict[str, Any]
    links: list[str]
    """Ids of spans that it has to do with."""


@operation("trace.ls")
async def list_traces(office: Office, limit: Limit = 50) -> list[TraceView]:
    """Traces that this node took part in, the newest first."""
    spans = _recorder(office.node).recent(min(limit * _SPANS_EACH, _SPANS_MAX))
    by_trace: dict[str, list[SpanRecord]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, []).append(span)
    traces = [_summary(id, found) for id, found in by_trace.items()]
    traces.sort(key=lambda it: it.started_at, reverse=True)
    return traces[:limit]


@operation("trace.show")
async def show_trace(office: Office, id: str, here: bool = False) -> list[SpanView]:
    """All that is known of a trace, by this node and by all members that can be reached.

    With `here` nobody else is asked.
    """
    node = office.node
    own = [] if node.recorder is None else [_view(it) for it in node.recorder.spans(id)]
    asked = [] if here else await _ask_others(office, node, id)
    found = {it.span_id: it for it in (*asked, *own)}
    if not found and not here:
        raise NotFound(
            f"nobody remembers a trace {id!r}: it may be too old, or tracing is off; "
            "see `postroad trace ls`"
        )
    return sorted(found.values(), key=lambda it: it.started_at)


async def _ask_others(office: Office, node: Node, id: str) -> list[SpanView]:
    if not node.config.has(Layer.CLUSTER):
        return []
    others = [it.name for it in node.agent.members if it.name != node.name and it.is_reachable]
    answers = await asyncio.gather(*(_ask(office, it, id) for it in others))
    return [span for answer in answers for span in answer]


async def _ask(office: Office, member: str, id: str) -> Sequence[SpanView]:
    """What a member knows; nothing if it does not say so in time."""
    try:
        async with asyncio.timeout(_ASK_S):
            told: list[SpanView] = await office.ask(member, "trace.show", {"id": id, "here": True})
            return told
    except (PostroadError, TimeoutError):
        return ()


def _recorder(node: Node) -> Recorder:
    if node.recorder is None:
        raise UsageError(
            f"node {node.name} remembers no traces: set tracing.enabled in its configuration"
        )
    return node.recorder


def _summary(id: str, spans: list[SpanRecord]) -> TraceView:
    first = min(spans, key=lambda it: it.start_ns)
    known = {it.span_id for it in spans}
    roots = [it for it in spans if it.parent_id is None or it.parent_id not in known]
    root = min(roots, key=lambda it: it.start_ns, default=first)
    # A peer may be an address, or a cell of a node.
    peers = {it.peer.rpartition("@")[2] for it in spans if it.peer and ":" not in it.peer}
    return TraceView(
        id=id,
        root=root.name,
        started_at=first.start_ns / 1e9,
        elapsed_ms=(max(it.end_ns for it in spans) - first.start_ns) / 1e6,
        spans=len(spans),
        nodes=sorted(peers | {it.node for it in spans}),
        is_error=any(not it.is_ok for it in spans),
    )


def _view(it: SpanRecord) -> SpanView:
    return SpanView(
        trace_id=it.trace_id,
        span_id=it.span_id,
        parent_id=it.parent_id,
        name=it.name,
        kind=it.kind.value,
        layer=it.layer,
        node=it.node,
        peer=it.peer,
        started_at=it.start_ns / 1e9,
        elapsed_ms=(it.end_ns - it.start_ns) / 1e6,
        error=it.error,
        code=it.code,
        attributes=dict(it.attributes),
        links=[link.span_id for link in it.links],
    )
