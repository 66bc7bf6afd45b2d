"""`postroad check`: whether a node is well, for monitors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from .main import EXIT_OK, EXIT_UNHEALTHY
from .places import PlacedCommand, open_desk, take_place

_WORDS = {"ok": "OK", "warning": "WARNING", "failing": "CRITICAL"}


@click.command(cls=PlacedCommand)
@click.option(
    "--format", "form", type=click.Choice(["nagios", "json"]), default="nagios", show_default=True
)
def check(form: str, **given: Any) -> int:
    """Tell monitors in one line whether a node is well.

    Exits with 0 if it is, with 4 if it is not, with 3 if none runs.

    \b
    Example:
      postroad check --url http://127.0.0.1:8222
    """
    with open_desk(take_place(given)) as desk:
        health = desk.do("node.health", {})
        queues = desk.do("node.overview", {})
    status = status_of(health)
    if form == "json":
        click.echo(json.dumps({"status": status, **health}, ensure_ascii=False))
    else:
        click.echo(nagios_line(status, health, queues))
    return EXIT_UNHEALTHY if status == "failing" else EXIT_OK


def status_of(health: Mapping[str, Any]) -> str:
    """The worst of all checks."""
    found = {it["status"] for it in health["checks"]}
    if not health["is_ready"] or "failing" in found:
        return "failing"
    return "warning" if "warning" in found else "ok"


def nagios_line(status: str, health: Mapping[str, Any], overview: Mapping[str, Any]) -> str:
    """As plugins of Nagios tell it: a word, a text, and numbers behind a bar."""
    name = overview["node"]["name"]
    troubles = [f"{it['name']}: {it['detail']}" for it in health["checks"] if it["status"] != "ok"]
    told = "; ".join([*health["reasons"], *troubles]) or f"node {name} is ready"
    numbers = ("members", "waiting", "dead", "requests_per_s")
    counted = " ".join(f"{it}={overview[it]:g}" for it in numbers if overview.get(it) is not None)
    # A bar or a line break in the text would end it for the reader.
    plain = told.replace("|", "/").replace("\n", " ")
    return f"POSTROAD {_WORDS[status]} - {plain} | {counted}"
