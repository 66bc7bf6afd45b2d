"""The map of a cluster as a tree, and for Mermaid and Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .screen import paint, visible

Map = Mapping[str, Any]

_ROOTS = ("node", "domain", "peer")
_DOT_COLOURS = {"ok": "black", "warning": "orange", "failing": "red"}


def draw_text(drawn: Map) -> str:
    """A tree: what each thing talks to stands below it; seen again, it is only named."""
    if not drawn["nodes"]:
        return "None."
    nodes = {it["id"]: it for it in drawn["nodes"]}
    below: dict[str, list[Map]] = {}
    for edge in drawn["edges"]:
        below.setdefault(edge["source"], []).append(edge)
    targets = {it["target"] for it in drawn["edges"]}
    roots = [id for id in nodes if id not in targets]
    roots += [id for id, it in nodes.items() if it["kind"] in _ROOTS and id not in roots]
    roots += [id for id in nodes if id not in roots]
    seen: set[str] = set()
    lines: list[str] = []
    for root in roots:
        if root not in seen:
            lines += _branch(root, None, nodes, below, seen, "", "")
    return "\n".join(lines)


def _branch(
    id: str,
    edge: Map | None,
    nodes: Mapping[str, Map],
    below: Mapping[str, list[Map]],
    seen: set[str],
    here: str,
    indent: str,
) -> Iterator[str]:
    is_again = id in seen
    yield f"{here}{_named(nodes.get(id), id)}{_along(edge)}{' (above)' if is_again else ''}"
    if is_again:
        return
    seen.add(id)
    edges = below.get(id, [])
    for index, it in enumerate(edges):
        is_last = index == len(edges) - 1
        branch, gap = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield from _branch(
            it["target"], it, nodes, below, seen, f"{indent}{branch}", f"{indent}{gap}"
        )


def _named(node: Map | None, id: str) -> str:
    if node is None:
        return id
    status = "" if node["status"] == "ok" else f" {paint(node['status'])}"
    detail = f" ({node['detail']})" if node.get("detail") else ""
    return f"{node['kind']} {visible(node['label'])}{status}{visible(detail)}"


def _along(edge: Map | None) -> str:
    if edge is None:
        return ""
    status = "" if edge["status"] == "ok" else f", {paint(edge['status'])}"
    label = f" {edge['label']}" if edge.get("label") else ""
    return f" [{edge['kind']}{label}{status}]"


def draw_mermaid(drawn: Map) -> str:
    """For Mermaid; ids of its own, because ours hold characters it has a use for."""
    numbers = {it["id"]: f"n{index}" for index, it in enumerate(drawn["nodes"])}
    lines = ["flowchart LR"]
    lines += [
        f'    {numbers[it["id"]]}["{_mermaid_text(it["kind"] + " " + it["label"])}"]'
        for it in drawn["nodes"]
    ]
    for edge in drawn["edges"]:
        if edge["source"] in numbers and edge["target"] in numbers:
            source, target = numbers[edge["source"]], numbers[edge["target"]]
            lines.append(f'    {source} -->|"{_mermaid_text(edge["kind"])}"| {target}')
    return "\n".join(lines)


def _mermaid_text(text: str) -> str:
    return text.replace('"', "#quot;")


def draw_dot(drawn: Map) -> str:
    """For Graphviz."""
    lines = ["digraph postroad {", "    rankdir=LR;", "    node [shape=box];"]
    for it in drawn["nodes"]:
        colour = _DOT_COLOURS.get(it["status"], "gray")
        label = _quoted(f"{it['kind']} {it['label']}")
        lines.append(f"    {_quoted(it['id'])} [label={label}, color={colour}];")
    for edge in drawn["edges"]:
        arrow = f"{_quoted(edge['source'])} -> {_quoted(edge['target'])}"
        colour = _DOT_COLOURS.get(edge["status"], "gray")
        lines.append(f"    {arrow} [label={_quoted(edge['kind'])}, color={colour}];")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
