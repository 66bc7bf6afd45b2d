"""Operations on the node itself: what it is, whether it is well, and everything with a name."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from postroad.admin.operations import NodeOffice
from postroad.core.errors import UsageError
from postroad.flows import FlowStatus
from postroad.node import App, Node
from tests.support.node.configs import config_of

from .operating import Operator, calculate, make_app, operated, two_operated


async def test_a_node_that_is_well_says_what_it_is(tmp_path: Path) -> None:
    async with operated(tmp_path) as operator:
        node = await operator.do("node.show")
        assert (node.name, node.cluster, node.pid) == ("alpha", "postroad", os.getpid())
        assert (node.state, node.reasons, node.is_secure) == ("running", [], False)
        assert node.layers == ["cluster", "cells", "queues", "services", "flows"]
        assert node.store == str(tmp_path / "alpha.db")
        assert node.memory_bytes > 1_000_000
        assert node.started_at is not None
        health = await operator.do("node.health")
        assert (health.is_ready, health.reasons) == (True, [])
        assert {it.name for it in health.checks} >= {"node", "queues", "flows", "disk", "pipeline"}
        assert {it.status for it in health.checks} == {"ok"}
        overview = await operator.do("node.overview")
        assert (overview.troubles, overview.dead, overview.waiting) == ([], 0, 0)
        assert (overview.members, overview.suspects, overview.jobs) == (1, 0, 0)
        with pytest.raises(UsageError, match=r"tracing\.enabled"):
            await operator.do("trace.ls")


async def test_everything_that_is_wrong_is_told(operator: Operator) -> None:
    await operator.do("queue.post", queue="orders", body="bad")
    parked = await operator.do("flow.begin", flow="stumble")
    await operator.until(lambda it: it.status is FlowStatus.PARKED, "flow.show", id=parked.id)
    await operator.do("queue.post", queue="letters", peer="gamma", body="hi")
    await operator.do("queue.pause", queue="orders")
    await operator.do("bridge.pause", peer="gamma")
    flows = operator.office.node.flows
    await flows.schedules.create("daily", "@daily", calculate, 1)
    flows.registry._flows.pop("calculate")
    overview = await operator.until(lambda it: len(it.troubles) == 5, "node.overview")
    troubles = {it.title: it for it in overview.troubles}
    assert [*troubles] == [
        "1 dead letter",
        "queue orders is paused",
        "the bridge to gamma is paused",
        "1 flow is parked",
        "schedule daily begins nothing",
    ]
    assert troubles["queue orders is paused"].command == "postroad queue resume orders"
    assert (troubles["1 flow is parked"].noun, troubles["1 dead letter"].noun) == (
        "flow",
        "dlq",
    )
    assert (overview.waiting, overview.dead, overview.flows) == (1, 1, {"parked": 1})
    health = await operator.do("node.health")
    checks = {it.name: it for it in health.checks}
    # People must look at it, but it does its work.
    assert health.is_ready
    assert (checks["queues"].status, checks["queues"].detail) == (
        "warning",
        "1 dead letter, and 2 more",
    )
    assert (checks["flows"].status, checks["cells"].status) == ("warning", "ok")


async def test_what_an_operator_changes_is_seen_at_once(operator: Operator) -> None:
    await operator.do("queue.post", queue="orders", body="bad")
    await operator.until(lambda it: it.dead == 1, "node.overview")
    await operator.do("dlq.drop")
    assert (await operator.do("node.overview")).dead == 0
    assert await operator.do("dlq.groups") == []
    await operator.do("queue.pause", queue="orders")
    (trouble,) = (await operator.do("node.overview")).troubles
    assert trouble.title == "queue orders is paused"
    await operator.do("queue.resume", queue="orders")
    assert (await operator.do("node.overview")).troubles == []


async def test_a_node_that_finds_no_other_says_so(tmp_path: Path) -> None:
    async with operated(tmp_path, cluster={"seeds": ["127.0.0.1:1"]}) as operator:
        health = await operator.do("node.health")
        (check,) = [it for it in health.checks if it.name == "cluster"]
        assert (check.status, check.detail) == ("warning", "no other node was found")


async def test_rates(operator: Operator) -> None:
    first = await operator.do("node.overview")
    assert first.requests_per_s == 0
    node = operator.office.node
    for number in range(50):
        await node.service.request(node.service.address, "cluster.membership", b"")
        await operator.do("queue.post", queue="orders", body=number)
    overview = await operator.until(lambda it: it.requests_per_s > 0, "node.overview")
    assert overview.node.cpu_share > 0
    await operator.until(lambda it: it.handled_per_s > 0, "node.overview")


async def test_a_node_that_drains_is_not_ready(operator: Operator) -> None:
    assert (await operator.do("node.drain", timeout_s=1)).left == 0
    health = await operator.do("node.health")
    assert not health.is_ready
    assert "the node is draining" in health.reasons
    assert (await operator.do("node.overview")).troubles[0].severity == "failing"


async def test_whoever_runs_a_node_is_asked_to_stop_it(operator: Operator) -> None:
    node = operator.office.node
    assert (await operator.do("node.stop")).state == "draining"
    async with asyncio.timeout(10):
        await node.stop_asked.wait()
    assert node.is_running


async def test_settings_without_secrets(tmp_path: Path) -> None:
    token = "a-secret-0123456789"
    node = Node(config_of(tmp_path, admin={"token": token}), make_app())
    node.origins = {"node.name": "--name"}
    async with node:
        settings = {it.key: it for it in await Operator(NodeOffice(node)).do("node.config")}
        assert (settings["node.name"].value, settings["node.name"].origin) == ("alpha", "--name")
        assert settings["queues.tuning.handler_timeout_s"].origin == "default"
        assert settings["node.data"].origin == "configuration"
        assert token not in str(settings)
        assert settings["admin.token"].value == "********"


async def test_logs(operator: Operator) -> None:
    logger = logging.getLogger("postroad.admin.test")
    logger.warning("something %s", "happened")
    try:
        raise ValueError("bad")
    except ValueError:
        logger.exception("failed")
    first, second = (await operator.do("node.logs"))[-2:]
    assert (first.level, first.logger) == ("warning", "postroad.admin.test")
    assert first.text == "something happened"
    assert second.text == "failed (ValueError('bad'))"
    assert len(await operator.do("node.logs", limit=1)) == 1


async def test_a_node_with_few_layers(tmp_path: Path) -> None:
    async with operated(tmp_path, app=App(), node={"layers": []}) as operator:
        assert [it.name for it in await operator.do("cluster.ls")] == ["alpha"]
        overview = await operator.do("node.overview")
        assert (overview.members, overview.flows, overview.troubles) == (1, {}, [])
        assert (await operator.do("node.show")).store is None
        found = await operator.do("cluster.map")
        assert ([it.id for it in found.nodes], found.edges) == (["node:alpha"], [])
        (hit,) = await operator.do("search.find", text="lpha")
        assert (hit.kind, hit.id) == ("node", "alpha")
        with pytest.raises(UsageError, match="no DurableQueues"):
            await operator.do("queue.ls")


async def test_everything_with_a_name_is_found(operator: Operator) -> None:
    posted = await operator.do("queue.post", queue="letters", body="hi")
    bad = await operator.do("queue.post", queue="orders", body="bad")
    (dead,) = await operator.until(lambda it: len(it) == 1, "dlq.ls")
    said = {"arguments": {"number": 1}, "client_id": "Client-7"}
    flow = await operator.do("flow.begin", flow="calculate", **said)

    async def found(text: str) -> list[tuple[str, str]]:
        return [(it.kind, it.id) for it in await operator.do("search.find", text=text)]

    assert await found("LETTERS") == [("queue", "letters")]
    assert await found(posted.id) == [("message", posted.id)]
    (hit,) = await operator.do("search.find", text=posted.id)
    assert (hit.noun, hit.within) == ("queue", "letters")
    assert await found(bad.id) == [("dead letter", dead.id)]
    assert await found(flow.id.upper()) == [("flow", flow.id)]
    assert await found("Client-7") == [("flow", flow.id)]
    assert await found("greeter.hell") == [("action", "v2.greeter.hello")]
    assert await found("echo") == [("cell", "echo@alpha")]
    assert ("flow definition", "calculate") in await found("calc")
    assert (await found("alpha"))[0] == ("node", "alpha")
    assert await found("  ") == []
    assert await found("nothing is called so") == []
    assert len(await operator.do("search.find", text="a", limit=2)) == 2


async def test_a_trace_over_two_nodes(tmp_path: Path) -> None:
    async with two_operated(tmp_path, tracing={"enabled": True}) as (alpha, beta):
        said = {"action": "v2.greeter.hello", "params": {"name": "Ann"}, "node_id": "beta"}
        await alpha.until(lambda it: len(it[0].nodes) == 2, "service.ls")
        await alpha.do("service.call", **said)
        traces = await alpha.until(
            lambda it: [trace for trace in it if "v2.greeter.hello" in trace.root], "trace.ls"
        )
        (trace,) = [it for it in traces if "v2.greeter.hello" in it.root]
        assert not trace.is_error
        assert trace.nodes == ["alpha", "beta"]
        spans = await alpha.until(
            lambda it: {span.node for span in it} == {"alpha", "beta"}, "trace.show", id=trace.id
        )
        assert {it.trace_id for it in spans} == {trace.id}
        (hit,) = await alpha.do("search.find", text=trace.id)
        assert (hit.kind, hit.id, hit.noun) == ("trace", trace.id, "trace")
        ids = {it.span_id for it in spans}
        assert all(it.parent_id is None or it.parent_id in ids for it in spans)
        here = await beta.do("trace.show", id=trace.id, here=True)
        assert {it.node for it in here} == {"beta"}
        with pytest.raises(LookupError, match="nobody remembers"):
            await alpha.do("trace.show", id="0" * 32)


async def test_logs_of_a_node_without_cells(tmp_path: Path) -> None:
    async with operated(tmp_path, app=App(), node={"layers": ["services"]}) as operator:
        logging.getLogger("postroad.probe").warning("something")
        assert [it.text for it in await operator.do("node.logs")][-1] == "something"
