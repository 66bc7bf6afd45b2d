"""Maps and traces as text."""

from typing import Any

from postroad.cli.drawing import draw_dot, draw_mermaid, draw_text
from postroad.cli.trace_tree import draw_trace


def thing(kind: str, name: str, status: str = "ok", detail: str = "") -> dict[str, str]:
    return {
        "id": f"{kind}:{name}",
        "kind": kind,
        "label": name,
        "status": status,
        "noun": kind,
        "detail": detail,
    }


def edge(
    source: str, target: str, kind: str, label: str = "", status: str = "ok"
) -> dict[str, str]:
    return {"source": source, "target": target, "kind": kind, "label": label, "status": status}


MAP: dict[str, Any] = {
    "nodes": [
        thing("node", "alpha"),
        thing("node", "beta", "failing", "suspect"),
        thing("queue", 'say "hi"', "warning"),
        thing("flow", "ping"),
        thing("flow", "pong"),
    ],
    "edges": [
        edge("node:alpha", "node:beta", "member", "1.2 ms", "failing"),
        edge("node:alpha", 'queue:say "hi"', "consumes"),
        edge("flow:ping", "flow:pong", "subscribes"),
        edge("flow:pong", "flow:ping", "subscribes"),
    ],
}


def test_map_is_drawn_as_tree_mermaid_and_dot() -> None:
    assert draw_text(MAP).splitlines() == [
        "node alpha",
        "├─ node beta failing (suspect) [member 1.2 ms, failing]",
        '└─ queue say "hi" warning [consumes]',
        "flow ping",
        "└─ flow pong [subscribes]",
        "   └─ flow ping [subscribes] (above)",
    ]
    assert draw_text({"nodes": [], "edges": []}) == "None."
    lines = draw_mermaid(MAP).splitlines()
    assert lines[0] == "flowchart LR"
    assert '    n2["queue say #quot;hi#quot;"]' in lines
    assert '    n0 -->|"consumes"| n2' in lines
    lines = draw_dot(MAP).splitlines()
    assert '    "queue:say \\"hi\\"" [label="queue say \\"hi\\"", color=orange];' in lines
    assert '    "node:alpha" -> "node:beta" [label="member", color=red];' in lines
    assert (lines[0], lines[-1]) == ("digraph postroad {", "}")


def span(id: str, parent: str | None, name: str, started: float, **more: Any) -> dict[str, Any]:
    return {
        "span_id": id,
        "parent_id": parent,
        "name": name,
        "started_at": started,
        "elapsed_ms": 2.0,
        "node": "alpha",
        "error": None,
        **more,
    }


def test_trace_is_a_tree_of_hops() -> None:
    drawn = draw_trace(
        [
            span("c", "a", "beta handles", 100.002, node="beta", error="boom\nlong"),
            span("a", "elsewhere", "call", 100.0),
            span("b", "a", "cache", 100.001),
        ]
    )
    assert [" ".join(line.split()) for line in drawn.splitlines()] == [
        "call + 0.0 ms 2.0 ms alpha",
        "├─ cache + 1.0 ms 2.0 ms alpha",
        "└─ beta handles + 2.0 ms 2.0 ms beta failed: boom",
    ]
    assert draw_trace([]) == "None."
