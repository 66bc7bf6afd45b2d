"""The service `$node`: what it tells has the form that nodes of the original give."""

from typing import Any

import pytest

from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import ServiceNotFoundError
from postroad.services.policies import RetryPolicy
from postroad.services.service import Service, action, event
from tests.support.deadlines import eventually
from tests.support.services.nodes import Nodes

NODE = [
    *("id", "instanceID", "available", "local", "lastHeartbeatTime", "config", "client"),
    *("metadata", "ipList", "port", "hostname", "udpAddress", "cpu", "cpuSeq", "seq"),
    "offlineSince",
]


class Posts(Service):
    name = "posts"
    version = 2
    settings = {"limit": 5}  # noqa: RUF012
    metadata = {"scale": True}  # noqa: RUF012

    @action(params={"limit": "number"}, cache=True)
    def find(self, ctx: Context) -> int:
        return 1

    @action(visibility="private")
    def secret(self, ctx: Context) -> None: ...

    @event("user.*")
    def on_user(self, ctx: Context) -> None: ...

    @event("pay", group="money")
    def on_pay(self, ctx: Context) -> None: ...


FIND = {
    "params": {"limit": "number"},
    "visibility": "published",
    "cache": True,
    "rawName": "find",
    "name": "v2.posts.find",
}


@pytest.fixture
async def far(nodes: Nodes) -> Broker:
    await nodes.add("near", Posts(), metadata={"zone": 1})
    return await nodes.add("far", retry=RetryPolicy(retries=7))


async def test_nodes(nodes: Nodes, far: Broker) -> None:
    own, other = await far.call("$node.list")
    assert [*own] == [*other] == NODE
    assert (own["id"], own["local"], own["available"]) == ("far", True, True)
    assert (other["id"], other["local"], other["metadata"]) == ("near", False, {"zone": 1})
    assert [*other["client"]] == ["type", "version", "langVersion"]
    assert other["client"]["type"] == "postroad"
    own, other = await far.call("$node.list", {"withServices": True})
    assert [it["name"] for it in own["services"]] == ["$node"]
    posts = next(it for it in other["services"] if it["name"] == "posts")
    assert [*posts] == [
        *("name", "version", "fullName", "settings", "metadata", "actions", "events"),
    ]
    await nodes.brokers[0].stop()
    await eventually(lambda: not far.registry.has_service("v2.posts"), "it is gone")
    node = far.registry.node("near")
    assert node is not None
    await eventually(lambda: not node.is_available, "the node is gone")
    gone = (await far.call("$node.list"))[1]
    assert (gone["available"], gone["offlineSince"] is None) == (False, False)
    assert len(await far.call("$node.list", {"onlyAvailable": True})) == 1


async def test_services(far: Broker) -> None:
    internal, posts = await far.call("$node.services")
    assert (internal["name"], internal["nodes"]) == ("$node", ["far", "near"])
    assert posts == {
        "name": "posts",
        "version": 2,
        "fullName": "v2.posts",
        "settings": {"limit": 5},
        "metadata": {"scale": True},
        "local": False,
        "available": True,
        "nodes": ["near"],
    }
    asked = {"skipInternal": True, "withActions": True, "withEvents": True, "grouping": False}
    (posts,) = await far.call("$node.services", asked)
    assert posts["nodeID"] == "near"
    assert "nodes" not in posts
    assert posts["actions"] == {"v2.posts.find": FIND}
    assert posts["events"] == {
        "user.*": {"name": "user.*"},
        "pay": {"group": "money", "name": "pay"},
    }
    (own,) = await far.call("$node.services", {"onlyLocal": True})
    assert (own["local"], own["nodes"]) == (True, ["far"])
    assert len(await far.call("$node.services", {"grouping": False})) == 3


async def test_private_actions_are_not_told(nodes: Nodes, far: Broker) -> None:
    near = nodes.brokers[0]
    (posts,) = await near.call("$node.services", {"skipInternal": True, "withActions": True})
    assert [*posts["actions"]] == ["v2.posts.find"]
    (find,) = await near.call("$node.actions", {"skipInternal": True})
    assert find["name"] == "v2.posts.find"


async def test_actions_and_events(nodes: Nodes, far: Broker) -> None:
    asked = {"skipInternal": True, "withEndpoints": True}
    endpoints = [{"nodeID": "near", "state": True, "available": True}]
    assert await far.call("$node.actions", asked) == [
        {
            "name": "v2.posts.find",
            "count": 1,
            "hasLocal": False,
            "available": True,
            "action": FIND,
            "endpoints": endpoints,
        }
    ]
    user, pay = await far.call("$node.events", asked)
    assert [*user] == ["name", "group", "count", "hasLocal", "available", "event", "endpoints"]
    assert (user["group"], user["event"]) == ("posts", {"name": "user.*"})
    assert (pay["group"], pay["event"]) == ("money", {"group": "money", "name": "pay"})
    assert await far.call("$node.actions", {"skipInternal": True, "onlyLocal": True}) == []
    await nodes.brokers[0].remove("v2.posts")
    await nodes.settle()
    assert await far.call("$node.actions", {"skipInternal": True}) == [
        {"name": "v2.posts.find", "count": 0, "hasLocal": False, "available": False}
    ]
    assert await far.call("$node.actions", {"skipInternal": True, "onlyAvailable": True}) == []


async def test_health_options_and_metrics(far: Broker) -> None:
    told = await far.call("$node.health", node_id="near")
    assert [*told] == ["cpu", "mem", "os", "process", "client", "net", "time"]
    assert [*told["cpu"]] == ["load1", "load5", "load15", "cores", "utilization"]
    assert [*told["mem"]] == ["free", "total", "percent"]
    assert 0 < told["mem"]["free"] <= told["mem"]["total"]
    assert told["process"]["pid"] > 0
    assert told["process"]["memory"]["rss"] > 1_000_000
    assert [*told["time"]] == ["now", "iso", "utc"]
    assert told["time"]["iso"].endswith("Z")
    assert told["time"]["utc"].endswith("GMT")

    told = await far.call("$node.options")
    assert (told["nodeID"], told["namespace"], told["requestTimeout"]) == ("far", "", 10_000)
    assert told["retryPolicy"] == {
        "enabled": False,
        "retries": 7,
        "delay": 100,
        "maxDelay": 1000,
        "factor": 2,
    }
    assert (await far.call("$node.options", node_id="near"))["metadata"] == {"zone": 1}

    told = {it["name"]: it for it in await far.call("$node.metrics", node_id="near")}
    sent = told["postroad.transit.packets_sent"]
    assert (sent["type"], sent["labelNames"]) == ("gauge", [])
    assert sent["values"][0]["value"] > 0

    async def names(**asked: Any) -> list[str]:
        return [it["name"] for it in await far.call("$node.metrics", asked)]

    assert await names(includes="*.pending") == ["postroad.pending"]
    assert "postroad.pending" not in await names(excludes=["*.pending"])
    assert await names(types="counter") == []


async def test_names_with_a_dollar_stay_at_the_node(nodes: Nodes, far: Broker) -> None:
    assert {(await far.call("$node.options"))["nodeID"] for _ in range(3)} == {"far"}
    assert (await far.call("$node.options", node_id="near"))["nodeID"] == "near"
    with pytest.raises(ServiceNotFoundError):
        await far.call("$node.options", node_id="nobody")
