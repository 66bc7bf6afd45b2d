"""`postroad check`: whether a node is well, for monitors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from postroad.admin import PostroadError

from .main import EXIT_OK, EXIT_UNHEALTHY
from .places import PlacedCommand, open_desk, take_place

_WORDS = {"ok": "OK", "warning": "WARNING", "failing": "CRITICAL"}


@click.command(cls=PlacedCommand)
@click.option(
    "--format",
    "form",
    type=click.Choice(["nagios", "json"]),
    default="nagios",
    show_default=True,
    help="For whom the line is.",
)
@click.option(
    "--ready",
    "only_ready",
    is_flag=True,
    help="Exit with 0 also if something waits for an operator: for probes that would take the node"
    " out of service.",
)
def check(form: str, only_ready: bool, **given: Any) -> int:
    """Report in one line whether a node is healthy.

    Exits with 0 if nothing is reported. Exits with 4 if anything is: a dead letter, a parked flow,
    a paused queue; or a node that is not ready or does not answer.

    \b
    Example:
      postroad check --url http://127.0.0.1:8222
    """
    try:
        with open_desk(take_place(given)) as desk:
            health = desk.do("node.health", {})
            overview = desk.do("node.overview", {})
    except PostroadError as error:
        # A monitor reads lines and no errors.
        health = {"is_ready": False, "reasons": [str(error)], "checks": []}
        overview = {}
    status = status_of(health)
    if form == "json":
        click.echo(json.dumps({"status": status, **health}, ensure_ascii=False))
    else:
        click.echo(nagios_line(status, health, overview))
    is_well = status == "ok" or (only_ready and status == "warning")
    return EXIT_OK if is_well else EXIT_UNHEALTHY


def status_of(health: Mapping[str, Any]) -> str:
    """The worst of all checks."""
    found = {it["status"] for it in health["checks"]}
    if not health["is_ready"] or "failing" in found:
        return "failing"
    return "warning" if "warning" in found else "ok"


def nagios_line(status: str, health: Mapping[str, Any], overview: Mapping[str, Any]) -> str:
    """As plugins of Nagios tell it: a word, a text, and numbers behind a bar."""
    troubles = [f"{it['name']}: {it['detail']}" for it in health["checks"] if it["status"] != "ok"]
    told = "; ".join([*health["reasons"], *troubles]) or f"node {overview['node']['name']} is ready"
    numbers = ("members", "waiting", "dead", "requests_per_s")
    counted = " ".join(f"{it}={overview[it]:g}" for it in numbers if overview.get(it) is not None)
    # A bar or a line break in the text would end it for the reader.
    plain = told.replace("|", "/").replace("\n", " ")
    line = f"POSTROAD {_WORDS[status]} - {plain}"
    return f"{line} | {counted}" if counted else line
