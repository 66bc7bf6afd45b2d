"""`postroad graph`: the map of a cluster as a tree, or for Mermaid and Graphviz."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from .drawing import draw_dot, draw_mermaid, draw_text
from .places import PlacedCommand, open_desk, take_place


@click.command(cls=PlacedCommand)
@click.option("--mermaid", "form", flag_value="mermaid", help="For Mermaid, as in many wikis.")
@click.option("--dot", "form", flag_value="dot", help="For Graphviz.")
@click.option("--json", "form", flag_value="json", help="Print JSON, for programs.")
def graph(form: str | None, **given: Any) -> None:
    """Draw everything and how it is connected.

    \b
    Example:
      postroad graph
      postroad graph --dot | dot -Tsvg > cluster.svg
    """
    with open_desk(take_place(given)) as desk:
        drawn = desk.do("cluster.map", {})
    draw = {"mermaid": draw_mermaid, "dot": draw_dot, "json": _json}.get(form or "", draw_text)
    click.echo(draw(drawn))


def _json(drawn: Mapping[str, Any]) -> str:
    return json.dumps(drawn, indent=2, ensure_ascii=False)
