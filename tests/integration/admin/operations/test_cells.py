"""Operations on cells and on members of the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.admin.errors import NotFound
from postroad.cells import CellNotFoundError, CommandRejectedError
from postroad.core.errors import ConfigError, UsageError

from .operating import Operator


async def test_cells_of_one_domain(operator: Operator) -> None:
    (domain,) = await operator.do("cells.domains")
    assert (domain.name, domain.is_local, domain.role) == ("alpha", True, "core")
    cells = {it.name: it for it in await operator.do("cells.ps")}
    assert {"System", "RoutingMgr", "echo"} <= cells.keys()
    echo = cells["echo"]
    assert (echo.kind, echo.is_system, echo.state) == ("Echo", False, "idle")
    assert (echo.consumes, echo.subscribes) == (["shouts"], ["news"])
    assert [it.name for it in await operator.do("cells.ps", pattern="ec*")] == ["echo"]
    (route,) = await operator.do("cells.routes", type="queue", destination="shouts")
    assert (route.destination, route.target) == ("shouts@*", "echo@alpha")
    assert (await operator.do("cells.run", cell="echo", command="twice ho")).text == "ho ho"


async def test_cells_are_drained_and_killed(operator: Operator) -> None:
    assert "drained" in (await operator.do("cells.drain", cell="echo")).text
    (echo,) = await operator.do("cells.ps", pattern="echo")
    assert (echo.state, echo.consumes) == ("draining", [])
    assert (await operator.do("cells.kill", cell="echo@alpha")).text == "echo is removed"
    assert await operator.do("cells.ps", pattern="echo") == []
    with pytest.raises(CellNotFoundError, match="no cell 'echo'"):
        await operator.do("cells.kill", cell="echo")
    with pytest.raises(UsageError, match="cannot be killed"):
        await operator.do("cells.kill", cell="System")
    with pytest.raises(ValueError, match=r"'\*@alpha' is no"):
        await operator.do("cells.kill", cell="*@alpha")


async def test_pings_and_the_way_of_messages(alpha: Operator) -> None:
    pings = await alpha.do("cells.ping", path="echo@beta", count=3)
    assert [it.number for it in pings] == [1, 2, 3]
    assert {it.answered_by for it in pings} == {"echo@beta"}
    assert all(it.round_trip_ms > 0 for it in pings)
    (lost,) = await alpha.do("cells.ping", path="nobody@beta", timeout_s=2)
    assert lost.round_trip_ms is None
    assert "nobody" in lost.error
    hops = await alpha.do("cells.traceroute", path="echo@beta")
    assert [(it.domain, it.is_out, it.is_back) for it in hops] == [
        ("alpha", True, True),
        ("beta", True, True),
    ]
    assert all(it.round_trip_ms is not None for it in hops)
    with pytest.raises(ConfigError):
        await alpha.do("cells.ping", path="@@")


async def test_cells_of_another_domain(alpha: Operator, beta: Operator) -> None:
    domains = {it.name: it for it in await alpha.do("cells.domains")}
    assert not domains["beta"].is_local
    assert domains["beta"].gateway in [it.name for it in await alpha.do("cells.ps")]
    there = await alpha.do("cells.ps", domain="beta", pattern="ech?")
    assert [(it.name, it.domain) for it in there] == [("echo", "beta")]
    for name, params in (("run", {"command": "twice hey"}), ("kill", {}), ("drain", {})):
        with pytest.raises(CommandRejectedError, match="domain beta rejected a remote command"):
            await alpha.do(f"cells.{name}", cell="echo@beta", **params)
    beta.office.node.domain.dispatcher.remote_commands = "change"
    text = (await alpha.do("cells.run", cell="echo@beta", command="twice hey")).text
    assert text == "hey hey"
    await alpha.do("cells.kill", cell="echo@beta")
    assert await beta.do("cells.ps", pattern="echo") == []


async def test_members(alpha: Operator, beta: Operator) -> None:
    first, second = await alpha.do("cluster.ls")
    assert (first.name, first.is_local, first.state) == ("alpha", True, "alive")
    assert (second.name, second.is_local) == ("beta", False)
    assert second.address == str(beta.office.node.service.address)
    assert (await alpha.do("cluster.show", member="beta")).name == "beta"
    with pytest.raises(NotFound, match="no member 'bta'; did you mean 'beta'"):
        await alpha.do("cluster.show", member="bta")


async def test_the_map_of_two_nodes(alpha: Operator) -> None:
    for peer in ("beta", "gamma"):
        await alpha.do("queue.post", queue="letters", peer=peer, body="hi")
    await alpha.do("queue.post", queue="letters", body="hi")
    found = await _map_with_services(alpha)
    nodes = {it.id: it for it in found.nodes}
    assert {
        *("node:alpha", "node:beta", "peer:gamma", "domain:alpha", "domain:beta"),
        *("cell:echo@alpha", "queue:orders", "queue:letters", "service:v2.greeter"),
        *("flow:calculate", "flow:respond"),
    } <= nodes.keys()
    assert nodes["queue:letters"].status == "warning"
    assert nodes["queue:orders"].status == "ok"
    edges = {(it.source, it.kind, it.target) for it in found.edges}
    assert {
        ("node:alpha", "member", "node:beta"),
        ("node:alpha", "bridge", "peer:gamma"),
        ("node:alpha", "bridge", "node:beta"),
        ("domain:alpha", "tunnel", "domain:beta"),
        ("node:beta", "serves", "domain:beta"),
        ("domain:alpha", "serves", "cell:echo@alpha"),
        ("node:alpha", "consumes", "queue:orders"),
        ("node:alpha", "serves", "queue:letters"),
        ("node:alpha", "serves", "service:v2.greeter"),
        ("node:beta", "serves", "service:v2.greeter"),
        ("node:alpha", "serves", "flow:calculate"),
    } <= edges
    assert {it.source for it in found.edges} | {it.target for it in found.edges} <= nodes.keys()


async def _map_with_services(operator: Operator) -> Any:
    def has_all(found: Any) -> bool:
        edges = {(it.source, it.target) for it in found.edges}
        return ("node:beta", "service:v2.greeter") in edges and (
            "node:alpha",
            "queue:letters",
        ) in edges

    return await operator.until(has_all, "cluster.map")
