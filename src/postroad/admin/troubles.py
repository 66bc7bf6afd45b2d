"""What is wrong with a node, found in one place: for its health, its overview and for people."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from shlex import quote
from typing import Literal

import msgspec

from postroad.core.errors import PostroadError
from postroad.durable import DurableQueuesStatistics
from postroad.flows import FlowStatus
from postroad.node import Layer, Node, State

from .jobs import jobs_of
from .vitals import vitals_of

Severity = Literal["failing", "warning"]
Level = Literal["ok", "warning", "failing"]

_WORST_FIRST = ("failing", "warning")
# A queue that nobody takes messages of is a trouble only if they wait for so long.
_PATIENCE_S = 10.0
_DISK_BYTES_MIN = 512 * 1024 * 1024


class TroubleView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an operator should look at."""

    severity: Severity
    """`failing`: the node cannot do its work; `warning`: some of it waits for somebody."""
    title: str
    detail: str
    part: str
    """The part of the node it is about."""
    noun: str
    """What to look at, as in `queue`."""
    id: str | None
    """Which of them; None if it is about all."""
    command: str
    """The command that shows more."""


class CheckView(msgspec.Struct, frozen=True, kw_only=True):
    """How one part of a node is."""

    name: str
    status: Level
    detail: str
    next: str | None
    """What to do about it; None if there is nothing to do."""


async def find_troubles(node: Node) -> list[TroubleView]:
    """Everything that is wrong with a node that runs, the worst first."""
    found = [it async for it in _find(node)]
    return sorted(found, key=lambda it: _WORST_FIRST.index(it.severity))


def summarize(node: Node, troubles: list[TroubleView]) -> list[CheckView]:
    """How each part of a node is."""
    parts = ["node", *(it.value for it in node.config.node.layers), "disk", "pipeline"]
    return [_check(part, [it for it in troubles if it.part == part]) for part in parts]


def _check(part: str, troubles: list[TroubleView]) -> CheckView:
    if not troubles:
        return CheckView(name=part, status="ok", detail="fine", next=None)
    first = troubles[0]
    more = f", and {len(troubles) - 1} more" if len(troubles) > 1 else ""
    return CheckView(
        name=part, status=first.severity, detail=first.title + more, next=first.command
    )


async def _find(node: Node) -> AsyncIterator[TroubleView]:
    for trouble in (*_of_node(node), *_of_disk(node)):
        yield trouble
    if not node.is_running:
        return
    vitals = vitals_of(node)
    if node.config.has(Layer.CLUSTER):
        for trouble in _of_cluster(node):
            yield trouble
    if node.config.has(Layer.QUEUES):
        try:
            for trouble in _of_mail(await vitals.mail.take()):
                yield trouble
        except PostroadError as error:
            yield _failing("queues", "the store cannot be read", str(error), "postroad doctor")
    if node.config.has(Layer.SERVICES):
        for trouble in _of_services(node):
            yield trouble
    if node.config.has(Layer.FLOWS):
        try:
            for trouble in _of_flows(await vitals.flows.take()):
                yield trouble
            async for trouble in _of_schedules(node):
                yield trouble
        except PostroadError as error:
            yield _failing("flows", "the flows cannot be read", str(error), "postroad doctor")
    async for trouble in _of_jobs(node):
        yield trouble


def _failing(part: str, title: str, detail: str, command: str) -> TroubleView:
    return TroubleView(
        severity="failing",
        title=title,
        detail=detail,
        part=part,
        noun="node",
        id=None,
        command=command,
    )


def _warning(
    part: str, noun: str, id: str | None, title: str, detail: str, command: str
) -> TroubleView:
    return TroubleView(
        severity="warning",
        title=title,
        detail=detail,
        part=part,
        noun=noun,
        id=id,
        command=command,
    )


def _of_node(node: Node) -> Iterator[TroubleView]:
    state = node.readiness.state
    if state is not State.RUNNING:
        reasons = "; ".join(node.readiness.reasons())
        yield _failing("node", f"the node is {state.value}", reasons, "postroad node show")


def _of_disk(node: Node) -> Iterator[TroubleView]:
    try:
        free = shutil.disk_usage(node.config.data if node.config.data.exists() else ".").free
    except OSError:
        return
    if free < _DISK_BYTES_MIN:
        yield _failing(
            "disk",
            f"{free // 2**20} MiB of disk are left",
            "nothing can be posted, accepted or recorded once the disk is full",
            "postroad doctor",
        )


def _of_cluster(node: Node) -> Iterator[TroubleView]:
    for member in node.agent.members:
        if not member.is_reachable:
            yield _warning(
                "cluster",
                "cluster",
                member.name,
                f"{member.name} does not answer",
                f"it was at {member.address}, and is removed if it goes on so",
                f"postroad cluster show {member.name}",
            )
    settings = node.config.cluster
    looks = bool(settings.seeds or settings.dns or settings.zookeeper)
    if looks and len(node.agent.members) == 1:
        yield _warning(
            "cluster",
            "cluster",
            None,
            "no other node was found",
            "this node was told where others are, and none of them answers",
            "postroad node config",
        )


def _of_mail(statistics: DurableQueuesStatistics) -> Iterator[TroubleView]:
    if statistics.dead_letters:
        letters = (
            "1 dead letter"
            if statistics.dead_letters == 1
            else f"{statistics.dead_letters} dead letters"
        )
        yield _warning(
            "queues",
            "dlq",
            None,
            letters,
            "messages that nobody could deliver or handle, until somebody decides about them",
            "postroad dlq groups",
        )
    for sender in statistics.blocked_senders:
        yield _warning(
            "queues",
            "dlq",
            None,
            f"mail of {sender} is not taken",
            "its dead letters take as much as sender_dead_bytes_max; it keeps what it has for this "
            "node until some of them are retried or dropped",
            "postroad dlq groups",
        )
    for name, queue in sorted(statistics.queues.items()):
        if queue.is_paused:
            title, command = f"queue {name} is paused", f"postroad queue resume {quote(name)}"
        elif not queue.has_consumer and queue.depth and (queue.oldest_age_s or 0) > _PATIENCE_S:
            title = f"nobody consumes queue {name}"
            command = f"postroad queue show {quote(name)}"
        else:
            continue
        yield _warning("queues", "queue", name, title, _waiting(queue.depth), command)
    for name, peer in sorted(statistics.peers.items()):
        trouble = None if peer.bridge is None else peer.bridge.last_error
        if peer.is_paused:
            title, command = f"the bridge to {name} is paused", f"postroad bridge resume {name}"
        elif trouble is not None and peer.depth:
            title, command = f"mail for {name} does not get through", f"postroad bridge show {name}"
        elif peer.depth and peer.bridge is None and (peer.oldest_age_s or 0) > _PATIENCE_S:
            title, command = f"mail waits for {name}, which is away", f"postroad bridge show {name}"
        else:
            continue
        waiting = _waiting(peer.depth)
        detail = waiting if trouble is None else f"{waiting}: {trouble}"
        yield _warning("queues", "bridge", name, title, detail, command)


def _waiting(depth: int) -> str:
    return "1 message waits" if depth == 1 else f"{depth} messages wait"


def _of_services(node: Node) -> Iterator[TroubleView]:
    if node.config.services.transporter is not None and not node.broker.is_connected:
        yield _warning(
            "services",
            "service",
            None,
            "the transporter is not connected",
            "services of other nodes cannot be called now",
            "postroad service ls",
        )
    for it in node.broker.registry.actions:
        broken = [at.node_id for at in it if not at.is_accepting]
        if broken:
            yield _warning(
                "services",
                "service",
                it.name,
                f"calls of {it.name} fail at {', '.join(broken)}",
                "its circuit breaker lets none through for now",
                f"postroad service show {quote(next(iter(it)).service)}",
            )


_TROUBLED = {
    FlowStatus.PARKED: "met an error that will not pass by itself, and waits for an operator",
    FlowStatus.HELD: "is known to nobody here, or no new ones are begun",
    FlowStatus.RETRYING: "met an error that may pass, and is tried again",
}


def _of_flows(counts: dict[FlowStatus, int]) -> Iterator[TroubleView]:
    for status, meaning in _TROUBLED.items():
        count = counts.get(status, 0)
        if count:
            yield _warning(
                "flows",
                "flow",
                None,
                f"1 flow is {status}" if count == 1 else f"{count} flows are {status}",
                meaning if count == 1 else f"each of them {meaning}",
                f"postroad flow ls --status {status}",
            )


async def _of_schedules(node: Node) -> AsyncIterator[TroubleView]:
    for it in await node.flows.schedules.list():
        if it.problem is not None:
            yield _warning(
                "flows",
                "flow",
                it.name,
                f"schedule {it.name} begins nothing",
                it.problem,
                "postroad flow schedules",
            )


async def _of_jobs(node: Node) -> AsyncIterator[TroubleView]:
    for job in await jobs_of(node):
        if job.state == "failed":
            title, detail = f"job {job.name} has failed", job.problem or "its process is gone"
        elif job.dead:
            dead = "1 dead segment" if job.dead == 1 else f"{job.dead} dead segments"
            title, detail = f"{dead} of job {job.name}", "they wait for somebody"
        elif job.problem is not None:
            title, detail = f"job {job.name} cannot be read", job.problem
        else:
            continue
        yield _warning(
            "pipeline",
            "job",
            job.name,
            title,
            detail,
            f"postroad job show {quote(job.name)}",
        )
