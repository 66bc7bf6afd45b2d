"""Where generated parts stand: whole files, and sections of pages between two comments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from postroad.cells import CellsConfig, RouteAdvertiserConfig, RouteLearnerConfig
from postroad.cluster import MembershipConfig
from postroad.core import RetryPolicy
from postroad.durable import DurableQueuesConfig
from postroad.flows import FlowsConfig
from postroad.node import GuaranteedConfig
from postroad.services import BreakerConfig, BrokerConfig, BulkheadConfig
from postroad.services import RetryPolicy as CallRetryPolicy

from .commands import commands_tables
from .configuration import settings_tables
from .drawing import draw_states
from .flow_drawings import draw_life, draw_session
from .flows import errors_table as errors_of_flows
from .flows import (
    fault_points_table,
    hospital_table,
    life_table,
    session_table,
    statuses_table,
)
from .operations import operations_tables, views_tables
from .services import errors_table, limits_table
from .tables import settings_table, transitions_table

DOCS = Path(__file__).resolve().parent.parent

_FILES = {
    "images/flow-life.svg": draw_life,
    "images/flow-session.svg": draw_session,
    "images/member-states.svg": draw_states,
}
_SECTIONS: dict[str, dict[str, Callable[[], str]]] = {
    "cells.md": {
        "advertiser settings": partial(settings_table, RouteAdvertiserConfig),
        "domain settings": partial(settings_table, CellsConfig),
        "guaranteed settings": partial(settings_table, GuaranteedConfig),
        "route learner settings": partial(settings_table, RouteLearnerConfig),
    },
    "cli.md": {"commands": commands_tables},
    "configuration.md": {"all settings": settings_tables},
    "durable.md": {
        "mail settings": partial(settings_table, DurableQueuesConfig),
        "retry settings": partial(settings_table, RetryPolicy),
    },
    "flows-internals.md": {
        "flow fault points": fault_points_table,
        "flow life": life_table,
        "flow session": session_table,
    },
    "flows-operations.md": {"flow statuses": statuses_table},
    "flows-reference.md": {
        "flow errors": errors_of_flows,
        "flow hospital": hospital_table,
        "flow settings": partial(settings_table, FlowsConfig),
    },
    "membership.md": {
        "settings": partial(settings_table, MembershipConfig),
        "transitions": transitions_table,
    },
    "operations.md": {"all operations": operations_tables, "all views": views_tables},
    "services.md": {
        "breaker settings": partial(settings_table, BreakerConfig),
        "broker settings": partial(settings_table, BrokerConfig),
        "bulkhead settings": partial(settings_table, BulkheadConfig),
        "retries settings": partial(settings_table, CallRetryPolicy),
        "service errors": errors_table,
        "service limits": limits_table,
    },
}


def generated() -> dict[Path, str]:
    """Every file with a generated part, as it should be."""
    files = {DOCS / name: make() for name, make in _FILES.items()}
    for name, sections in _SECTIONS.items():
        text = (DOCS / name).read_text(encoding="utf-8")
        for title, make in sections.items():
            text = _replace(text, title, make())
        files[DOCS / name] = text
    return files


def outdated() -> list[str]:
    """Names of files that are not as they should be."""
    return [path.name for path, text in generated().items() if _read(path) != text]


def write() -> None:
    """Bring all files up to date."""
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _replace(text: str, title: str, section: str) -> str:
    begin, end = f"<!-- generated: {title} -->", f"<!-- end of {title} -->"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise LookupError(f"no section between {begin} and {end}")
    return f"{before}{begin}\n\n{section}\n\n{end}{after}"
