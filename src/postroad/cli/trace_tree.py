"""The way of a request: what each hop did, when, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .screen import paint, visible

Span = Mapping[str, Any]

_NAMES = 40


def draw_trace(spans: Sequence[Span]) -> str:
    """A tree of the spans of one trace, each below the one that caused it."""
    if not spans:
        return "None."
    known = {it["span_id"] for it in spans}
    below: dict[str | None, list[Span]] = {}
    for it in sorted(spans, key=lambda it: float(it["started_at"])):
        parent = it.get("parent_id")
        below.setdefault(parent if parent in known else None, []).append(it)
    begun = min(float(it["started_at"]) for it in spans)
    return "\n".join(_lines(below, None, begun, ""))


def _lines(
    below: Mapping[str | None, list[Span]], parent: str | None, begun: float, indent: str
) -> Iterator[str]:
    children = below.get(parent, [])
    for index, it in enumerate(children):
        is_last = index == len(children) - 1
        branch, gap = ("", "") if parent is None else ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield _line(it, f"{indent}{branch}", begun)
        yield from _lines(below, it["span_id"], begun, f"{indent}{gap}")


def _line(span: Span, branch: str, begun: float) -> str:
    name = f"{branch}{visible(span['name'])}"
    after_ms = (float(span["started_at"]) - begun) * 1000
    error = span.get("error")
    told = f"  {paint('failed')}: {visible(str(error).splitlines()[0])}" if error else ""
    elapsed_ms = float(span["elapsed_ms"])
    return f"{name:<{_NAMES}}  +{after_ms:>9,.1f} ms  {elapsed_ms:>9,.1f} ms  {span['node']}{told}"
