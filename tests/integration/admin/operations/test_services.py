"""Operations on services of all nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.admin.errors import InvalidRequest, NotFound, ProgramFailed
from postroad.admin.operations import NodeOffice
from postroad.core.errors import PostroadError
from postroad.node import App, Node
from postroad.services import Context, Service, ValidationError, action
from tests.support.node.configs import config_of

from .operating import Colleagues, Greeter, Operator, make_app, operated


async def test_services_actions_and_events(operator: Operator) -> None:
    (service,) = await operator.do("service.ls")
    assert (service.name, service.version, service.nodes) == ("v2.greeter", "2", ["alpha"])
    assert service.actions == ["v2.greeter.hello", "v2.greeter.fail", "v2.greeter.count"]
    assert service.events == ["user.*"]
    assert "$node" in [it.name for it in await operator.do("service.ls", internal=True)]
    assert await operator.do("service.show", service="v2.greeter") == service
    with pytest.raises(NotFound, match=r"did you mean 'v2\.greeter'"):
        await operator.do("service.show", service="greeter")
    actions = {it.name: it for it in await operator.do("service.actions")}
    assert [*actions] == ["v2.greeter.count", "v2.greeter.fail", "v2.greeter.hello"]
    hello = actions["v2.greeter.hello"]
    assert (hello.service, hello.nodes, hello.available) == ("v2.greeter", ["alpha"], 1)
    assert hello.description == "Greets somebody."
    assert hello.schema is not None
    assert hello.schema["required"] == ["name"]
    assert hello.schema["properties"]["times"] == {"type": "integer", "default": 1}
    assert actions["v2.greeter.fail"].schema is None
    internal = await operator.do("service.actions", service="$node")
    assert "$node.list" in [it.name for it in internal]
    (event,) = await operator.do("service.events")
    assert (event.name, event.groups, event.nodes) == ("user.*", ["greeter"], ["alpha"])


async def test_actions_are_called(operator: Operator) -> None:
    said = {"name": "Ann", "times": 2}
    called = await operator.do("service.call", action="v2.greeter.hello", params=said)
    assert (called.result, called.is_cut) == ("Hello Ann, Hello Ann", False)
    assert called.elapsed_ms > 0
    at = {"action": "v2.greeter.hello", "params": said, "node_id": "alpha"}
    assert (await operator.do("service.call", **at)).node_id == "alpha"
    with pytest.raises(NotFound, match=r"did you mean 'v2\.greeter\.hello'"):
        await operator.do("service.call", action="v2.greeter.hallo")
    with pytest.raises(ValidationError):
        await operator.do("service.call", action="v2.greeter.hello", params={"name": 1})
    with pytest.raises(ProgramFailed, match=r"v2\.greeter\.fail raised ValueError: as told"):
        await operator.do("service.call", action="v2.greeter.fail")


async def test_params_that_an_action_does_not_know_are_named(operator: Operator) -> None:
    hello = {"action": "v2.greeter.hello"}
    called = await operator.do("service.call", params={"name": "Ann", "tims": 2}, **hello)
    assert called.result == "Hello Ann"
    assert called.warnings == [
        "v2.greeter.hello: no parameter is called 'tims'; did you mean 'times'?"
    ]
    with pytest.raises(ValidationError, match=r"'names'; did you mean 'name'\?") as caught:
        await operator.do("service.call", params={"names": "Ann"}, **hello)
    assert [it["field"] for it in caught.value.data] == ["name"]
    with pytest.raises(ValidationError, match=r"'who'; there are 'name', 'times'\."):
        await operator.do("service.call", params={"who": "Ann"}, **hello)
    assert not (await operator.do("service.call", params={"name": "Ann"}, **hello)).warnings


async def test_a_stream_is_shown_as_far_as_it_is_short(operator: Operator) -> None:
    said = {"action": "v2.greeter.count"}
    called = await operator.do("service.call", params={"upto": 3}, **said)
    assert (len(called.result), called.is_cut) == (3, False)
    called = await operator.do("service.call", params={"upto": 2_000}, **said)
    assert (len(called.result), called.is_cut) == (1_000, True)


async def test_events_are_sent(tmp_path: Path) -> None:
    greeter = Greeter()
    async with operated(tmp_path, app=make_app(services=[greeter])) as operator:
        sent = await operator.do("service.emit", event="user.created", data={"id": 1})
        assert (sent.groups, sent.is_durable) == (["greeter"], False)
        sent = await operator.do("service.emit", event="user.gone", data=2, durable=True)
        assert sent.is_durable
        sent = await operator.do("service.emit", event="user.seen", data=3, broadcast=True)
        assert sent.is_broadcast
        assert (await operator.do("service.emit", event="nobody.hears")).groups == []
        await operator.until(lambda _: len(getattr(greeter, "heard", [])) == 3, "service.ls")
        assert {"id": 1} in greeter.heard
        with pytest.raises(InvalidRequest, match="either durable or broadcast"):
            await operator.do("service.emit", event="user.x", durable=True, broadcast=True)


async def test_services_of_several_nodes(alpha: Operator) -> None:
    (service,) = await alpha.until(lambda it: len(it[0].nodes) == 2, "service.ls")
    assert (sorted(service.nodes), service.is_local) == (["alpha", "beta"], True)
    said = {"action": "v2.greeter.hello", "params": {"name": "Ann"}, "node_id": "beta"}
    assert (await alpha.do("service.call", **said)).result == "Hello Ann"
    # What another node raises comes as an error of services, with its name.
    with pytest.raises(PostroadError, match="as told"):
        await alpha.do("service.call", action="v2.greeter.fail", node_id="beta")


class Till(Service):
    name = "till"

    @action
    async def pay(self, ctx: Context, amount: int, currency: str = "EUR") -> int:
        return amount


async def test_what_actions_of_other_nodes_take(tmp_path: Path) -> None:
    async with Node(config_of(tmp_path, "alpha"), App()) as alpha:
        seeds = {"seeds": [str(alpha.service.address)]}
        async with Node(config_of(tmp_path, "beta", cluster=seeds), App(services=[Till()])):
            await alpha.broker.wait_for_services("till", timeout_s=10.0)
            operator = Operator(NodeOffice(alpha, Colleagues()))
            (view,) = await operator.do("service.actions")
            assert (view.name, view.nodes) == ("till.pay", ["beta"])
            assert view.schema["properties"] == {
                "amount": {"type": "integer"},
                "currency": {"type": "string", "default": "EUR"},
            }
            assert view.schema["required"] == ["amount"]
            said = {"action": "till.pay", "params": {"amount": 3, "currncy": "USD"}}
            called = await operator.do("service.call", **said)
            assert (called.result, len(called.warnings)) == (3, 1)
