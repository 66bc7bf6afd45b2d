"""The node itself: what it is, whether it is well, what it was told and what it says."""

from __future__ import annotations

import asyncio
import os
import platform
from typing import Any

import msgspec

from postroad._version import __version__
from postroad.admin.jobs import jobs_of
from postroad.admin.troubles import CheckView, TroubleView, find_troubles, summarize
from postroad.admin.vitals import vitals_of
from postroad.cells.shell.log_buffer import LOG_BUFFER
from postroad.node import Layer, Node
from postroad.node.keys import settings_keys, without_passwords

from .cluster import members_of
from .flows import DrainView
from .limits import Limit, Seconds
from .office import Office
from .table import Effect, operation

# Time for the answer to get out before the node stops.
_FAREWELL_S = 0.2


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node that runs."""

    name: str
    cluster: str
    address: str
    """Where other nodes reach it."""
    version: str
    state: str
    """`starting`, `running`, `draining` or `stopped`."""
    reasons: list[str]
    """Why it is not ready; empty if it is."""
    started_at: float | None
    pid: int
    python: str
    layers: list[str]
    is_secure: bool
    """Whether everything between nodes goes through TLS."""
    store: str | None
    """Where its mail is kept, without a password; None without mail."""
    memory_bytes: int
    """What the process holds in memory."""
    cpu_share: float
    """Of one core, over about the last ten seconds of looking."""


class HealthView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a node is ready, and how each of its parts is."""

    is_ready: bool
    reasons: list[str]
    """Why it is not."""
    checks: list[CheckView]


class OverviewView(msgspec.Struct, frozen=True, kw_only=True):
    """A node at a glance."""

    node: NodeView
    members: int
    suspects: int
    """Members that do not answer."""
    requests_per_s: float
    """Requests and messages between nodes, both ways."""
    posted_per_s: float
    """Durable messages for other nodes."""
    handled_per_s: float
    failed_per_s: float
    """Attempts to handle durable messages that came to nothing."""
    waiting: int
    """Durable messages in queues and for peers."""
    dead: int
    flows: dict[str, int]
    """How many there are of each status."""
    jobs: int
    """Jobs that run."""
    troubles: list[TroubleView]
    """The worst first."""


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """A setting."""

    key: str
    value: Any
    """Secrets are not shown."""
    origin: str
    """`default`, or what said otherwise."""


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log."""

    at: float
    level: str
    logger: str
    text: str


# Looking.


@operation("node.show")
async def show_node(office: Office) -> NodeView:
    """What this node is, and what it takes up."""
    return view_node(office.node)


@operation("node.health")
async def show_health(office: Office) -> HealthView:
    """Whether this node is ready, and how each of its parts is."""
    node = office.node
    checks = summarize(node, await find_troubles(node))
    reasons = node.readiness.reasons()
    reasons += [f"{it.name}: {it.detail}" for it in checks if it.status == "failing"]
    return HealthView(is_ready=not reasons, reasons=reasons, checks=checks)


@operation("node.overview")
async def show_overview(office: Office) -> OverviewView:
    """This node at a glance: how much it does, what waits, and what is wrong."""
    node = office.node
    vitals = vitals_of(node)
    members = members_of(node)
    statistics = await vitals.mail.take() if node.config.has(Layer.QUEUES) else None
    flows = await vitals.flows.take() if node.config.has(Layer.FLOWS) else {}
    return OverviewView(
        node=view_node(node),
        members=len(members),
        suspects=sum(it.state != "alive" for it in members),
        requests_per_s=vitals.requests_per_s(),
        posted_per_s=0.0 if statistics is None else statistics.sent_per_s,
        handled_per_s=0.0 if statistics is None else statistics.handled_per_s,
        failed_per_s=0.0 if statistics is None else statistics.failed_per_s,
        waiting=0 if statistics is None else statistics.waiting,
        dead=0 if statistics is None else statistics.dead_letters,
        flows={status.value: count for status, count in flows.items()},
        jobs=sum(it.state == "running" for it in await jobs_of(node)),
        troubles=await find_troubles(node),
    )


@operation("node.config")
async def show_config(office: Office) -> list[SettingView]:
    """Every setting of this node, and where it comes from; without secrets."""
    node = office.node
    shown = []
    for key in (await asyncio.to_thread(settings_keys)).values():
        value: Any = node.config
        for part in key.name.split("."):
            value = None if value is None else getattr(value, part)
        given = "default" if value == key.default else "configuration"
        origin = node.origins.get(key.name, given)
        shown.append(SettingView(key=key.name, value=key.show(value), origin=origin))
    return shown


@operation("node.logs")
async def show_logs(office: Office, limit: Limit = 100) -> list[LogView]:
    """The last lines that this process has logged, the oldest first; 200 are kept.

    Those of Postroad, and of a node that is a process of its own also those of its program.
    """
    return [
        LogView(at=it.at, level=it.level, logger=it.logger, text=it.text)
        for it in LOG_BUFFER.records(limit)
    ]


def view_node(node: Node) -> NodeView:
    """A node, as people see it."""
    vitals = vitals_of(node)
    return NodeView(
        name=node.name,
        cluster=node.cluster,
        address=str(node.service.address),
        version=__version__,
        state=node.readiness.state.value,
        reasons=node.readiness.reasons(),
        started_at=node.started_at,
        pid=os.getpid(),
        python=platform.python_version(),
        layers=[it.value for it in node.config.node.layers],
        is_secure=node.service.uses_tls,
        store=without_passwords(node.config.store) if node.config.has(Layer.QUEUES) else None,
        memory_bytes=vitals.memory_bytes(),
        cpu_share=vitals.cpu_share(),
    )


# Changing.


@operation("node.drain", Effect.CHANGE)
async def drain_node(office: Office, timeout_s: Seconds = 30.0) -> DrainView:
    """Take nothing new, and let what runs end; only a new start takes it back."""
    return DrainView(left=await office.node.drain(timeout_s))


@operation("node.stop", Effect.DANGER, scope="node.show")
async def stop_node(office: Office) -> NodeView:
    """Stop this node: it finishes its work, and its process ends."""
    node = office.node
    asyncio.get_running_loop().call_later(_FAREWELL_S, node.ask_to_stop)
    node.readiness.drains()
    return view_node(node)
