"""Services as classes: names, versions, visibility, mixins, dependencies, and their lives."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import ServiceNotAvailableError, ServiceNotFoundError
from postroad.services.kinds import Kind
from postroad.services.service import Service, action, event
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.services.nodes import Gate, Nodes, RawNode


def log_of(service: "Logged") -> Sequence[str]:
    return service.log


class Logged(Service):
    """Remembers what happened to it."""

    name = "logged"

    def __init__(self) -> None:
        self.log: list[str] = []

    def created(self) -> None:
        self.log.append(f"created {self.full_name}")

    async def started(self) -> None:
        self.log.append("started")

    async def stopped(self) -> None:
        self.log.append("stopped")

    @action
    def act(self, ctx: Context) -> str:
        return self.full_name


# Visibility.


class Seen(Service):
    name = "seen"

    @action(visibility="published")
    def published(self, ctx: Context) -> str:
        return "published"

    @action(visibility="public")
    def public(self, ctx: Context) -> str:
        return "public"

    @action(visibility="protected")
    def protected(self, ctx: Context) -> str:
        return "protected"

    @action(visibility="private")
    def private(self, ctx: Context) -> str:
        return "private"


async def test_who_may_call_an_action(nodes: Nodes) -> None:
    raw = await nodes.raw("raw")
    near = await nodes.add("near", Seen())
    info = await raw.next(Kind.INFO)
    told = {it["name"]: it["actions"] for it in info["services"]}
    assert {*told["seen"]} == {"seen.published", "seen.public", "seen.protected"}
    far = await nodes.add("far")
    for name in ("published", "public", "protected", "private"):
        is_remote = name in ("published", "public")
        for broker, may in ((near, name != "private"), (far, is_remote)):
            if may:
                assert await broker.call(f"seen.{name}") == name
            else:
                with pytest.raises(ServiceNotFoundError):
                    await broker.call(f"seen.{name}")
        answer = await raw.ask("near", f"seen.{name}")
        assert answer["success"] is is_remote
        assert is_remote or answer["error"]["name"] == "ServiceNotFoundError"


def test_actions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="visibility 'secret' is none of"):
        action(visibility="secret")
    cases: list[dict[str, Any]] = [{"timeout": 5}, {"timeout_s": "5"}, {"timeout_s": -1}]
    for options in cases:
        with pytest.raises(ConfigError, match="timeout_s"):
            action(**options)


# Names and versions.


async def test_versions_are_part_of_names(nodes: Nodes) -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (None, {}, "named"),
        (2, {}, "v2.named"),
        (1.5, {}, "v1.5.named"),
        ("beta", {}, "beta.named"),
        (2, {"$noVersionPrefix": True}, "other"),
    ]
    services = []
    for version, settings, full_name in cases:
        name = full_name.rpartition(".")[2]
        members = {"name": name, "version": version, "settings": settings}
        services.append(type("Named", (Logged,), members)())
    brokers = [await nodes.add("near", *services), await nodes.add("far")]
    for service, (*_, full_name) in zip(services, cases, strict=True):
        assert service.log[0] == f"created {full_name}"
        for broker in brokers:
            assert await broker.call(f"{full_name}.act") == full_name


async def test_names_of_actions(nodes: Nodes) -> None:
    class Bare(Service):
        name = "bare"
        settings: ClassVar = {"$noServiceNamePrefix": True}

        @action(name="renamed.here")
        def act(self, ctx: Context) -> int:
            return 1

    class CamelCase(Service):
        @action
        def act(self, ctx: Context) -> int:
            return 2

    broker = await nodes.add("near", Bare(), CamelCase())
    assert await broker.call("renamed.here") == 1
    assert await broker.call("camelcase.act") == 2


def test_services_that_make_no_sense_are_refused() -> None:
    class Twice(Service):
        @action(name="same")
        def one(self, ctx: Context) -> None: ...

        @action(name="same")
        def other(self, ctx: Context) -> None: ...

    class Spaced(Service):
        name = "with space"

    broker = Broker("near")
    for service, text in ((Twice(), "twice"), (Spaced(), "space")):
        with pytest.raises(ConfigError, match=text):
            broker.add(service)
    broker.add(Logged())
    with pytest.raises(ConfigError, match="has a service 'logged' already"):
        broker.add(Logged())


async def test_a_service_belongs_to_one_broker(nodes: Nodes) -> None:
    service = Logged()
    broker = await nodes.add("near", service)
    with pytest.raises(ConfigError, match="belongs to"):
        nodes.make("far", service)
    await broker.stop()
    await nodes.add("far", service)


# Mixins.


class Timestamps(Service):
    settings: ClassVar = {"zone": "UTC", "nested": {"a": 1, "b": 1}}
    metadata: ClassVar = {"mixed": True}
    dependencies: ClassVar[Sequence[str]] = ("logged",)

    def __init__(self) -> None:
        self.log: list[str] = []

    async def started(self) -> None:
        self.log.append("mixin started")

    @action
    def when(self, ctx: Context) -> str:
        return f"mixin {self.settings['zone']}"

    @action
    def other(self, ctx: Context) -> str:
        return "mixin"

    @action(timeout_s=1)
    def overridden(self, ctx: Context) -> str:
        return "mixin"

    @action
    def taken_away(self, ctx: Context) -> None: ...

    @event("tick")
    def on_tick(self, ctx: Context) -> None:
        self.log.append("mixin tick")


class Clock(Timestamps):
    name = "clock"
    settings: ClassVar = {"zone": "CET", "nested": {"b": 2}, "own": 1}
    metadata: ClassVar = {"own": True}
    dependencies: ClassVar[Sequence[str]] = ("second", "logged")

    taken_away = None  # type: ignore[assignment]

    async def started(self) -> None:
        await super().started()
        self.log.append("own started")

    def overridden(self, ctx: Context) -> str:
        return "own"

    @action
    def other(self, ctx: Context) -> str:
        return f"own and {super().other(ctx)}"


class Second(Logged):
    name = "second"


async def test_mixins_are_base_classes(nodes: Nodes) -> None:
    clock = Clock()
    near = await nodes.add("near", clock, Logged(), Second())
    far = await nodes.add("far")
    assert await far.call("clock.when") == "mixin CET"
    assert await far.call("clock.other") == "own and mixin"
    assert await far.call("clock.overridden") == "own"
    with pytest.raises(ServiceNotFoundError):
        await far.call("clock.taken_away")
    assert clock.log == ["mixin started", "own started"]
    assert clock.settings == {"zone": "CET", "nested": {"a": 1, "b": 2}, "own": 1}
    assert clock.metadata == {"mixed": True, "own": True}
    await near.broadcast_local("tick")
    assert clock.log[-1] == "mixin tick"
    assert Clock.settings["nested"] == {"b": 2}


async def test_secure_settings_stay_here(nodes: Nodes) -> None:
    class Secretive(Service):
        name = "secretive"
        settings: ClassVar = {"$secureSettings": ["password", "db.key"], "password": "x", "n": 1}

        def __init__(self) -> None:
            self.settings = {"db": {"key": "y", "host": "z"}}  # type: ignore[misc]

    raw = await nodes.raw("raw")
    service = Secretive()
    await nodes.add("near", service)
    info = await raw.next(Kind.INFO)
    told = next(it for it in info["services"] if it["name"] == "secretive")
    assert told["settings"] == {"n": 1, "db": {"host": "z"}}
    assert service.settings["password"] == "x"


# Lives.


async def test_a_service_starts_when_its_dependencies_are_there(nodes: Nodes) -> None:
    clock = Clock()
    broker = nodes.make("near", clock)
    starting = asyncio.ensure_future(broker.start())
    await nodes.add("second", Second())
    await eventually(lambda: broker.registry.has_service("second"), "one is there")
    assert clock.log == []
    await nodes.add("logged", Logged())
    await asyncio.wait_for(starting, DEADLINE_S)
    assert clock.log == ["mixin started", "own started"]


async def test_a_service_does_not_wait_for_ever(nodes: Nodes) -> None:
    class Impatient(Clock):
        dependency_timeout_s = 0.02

    broker = nodes.make("near", Impatient(), Logged())
    with pytest.raises(ServiceNotAvailableError, match=r"not there within 0.02 s: second"):
        await broker.start()
    assert not broker.is_running


async def test_services_come_and_go_while_a_broker_runs(nodes: Nodes) -> None:
    near, far = await nodes.add("near"), await nodes.add("far")
    service = Logged()
    with pytest.raises(UsageError, match="launch"):
        near.add(service)
    await near.launch(service)
    await far.wait_for_services("logged", timeout_s=DEADLINE_S)
    assert await far.call("logged.act") == "logged"
    await near.remove("logged")
    await near.remove("logged")
    assert log_of(service) == ["created logged", "started", "stopped"]
    await eventually(lambda: not far.registry.has_service("logged"), "it is gone")
    assert near.services() == []
    await near.launch(service)
    await far.wait_for_services("logged", timeout_s=DEADLINE_S)
    assert await far.call("logged.act") == "logged"


async def test_a_service_that_cannot_be_launched_is_not_there(nodes: Nodes) -> None:
    class Broken(Logged):
        async def started(self) -> None:
            raise OSError("no disk")

    broker = await nodes.add("near")
    service = Broken()
    with pytest.raises(OSError, match="no disk"):
        await broker.launch(service)
    assert broker.services() == []
    assert log_of(service) == ["created logged"]
    await broker.launch(Logged())


async def test_a_service_is_removed_when_its_calls_have_ended(nodes: Nodes) -> None:
    gate = Gate()

    class Slow(Logged):
        @action
        async def wait(self, ctx: Context) -> str:
            await gate.passed()
            self.log.append("call ended")
            return "done"

    service = Slow()
    near, far = await nodes.add("near", service), await nodes.add("far")
    calls = [asyncio.ensure_future(it.call("logged.wait")) for it in (near, far)]
    await gate.reached(2)
    removing = asyncio.ensure_future(near.remove("logged"))
    await eventually(lambda: not near.registry.has_service("logged"), "it is withdrawn")
    with pytest.raises(ServiceNotAvailableError):
        await near.call("logged.wait")
    gate.open()
    assert await asyncio.gather(*calls) == ["done", "done"]
    await removing
    assert log_of(service)[-3:] == ["call ended", "call ended", "stopped"]


async def test_services_can_be_removed_before_the_start(nodes: Nodes) -> None:
    service = Logged()
    broker = nodes.make("near", service)
    await broker.remove("logged")
    await broker.start()
    assert log_of(service) == ["created logged"]


async def test_waiting_for_services(nodes: Nodes) -> None:
    near, far = await nodes.add("near", Logged()), await nodes.add("far")
    await far.wait_for_services("logged", timeout_s=0)
    await far.wait_for_services(["logged", "$node"], timeout_s=1)
    with pytest.raises(ServiceNotAvailableError, match=r"not there within 0.01 s: v2.logged"):
        await far.wait_for_services(["logged", "v2.logged"], timeout_s=0.01)
    waiting = asyncio.ensure_future(far.wait_for_services("never"))
    await asyncio.sleep(0)
    await near.stop()
    await far.stop()
    with pytest.raises(UsageError, match="was stopped"):
        await asyncio.wait_for(waiting, DEADLINE_S)


# Opening.


async def test_a_broker_that_has_not_opened_serves_itself_alone(nodes: Nodes) -> None:
    far = await nodes.add("far")
    near = nodes.make("near", Logged())
    await near.start(opens=False)
    raw = await RawNode(nodes.hub, "raw").connect()
    assert await near.call("logged.act") == "logged"
    refused = await raw.ask("near", "logged.act")
    assert refused["error"]["name"] == "ServiceNotAvailableError"
    assert not far.registry.has_service("logged")
    await near.open()
    await near.open()
    await far.wait_for_services("logged", timeout_s=DEADLINE_S)
    assert await far.call("logged.act") == "logged"
    await near.withdraw()
    await eventually(lambda: not far.registry.has_service("logged"), "it is withdrawn")
    assert await near.call("logged.act") == "logged"
    # What was withdrawn is not offered again.
    await near.open()
    assert (await raw.ask("near", "logged.act"))["success"] is False


async def test_a_broker_opens_before_it_waits_for_others(nodes: Nodes) -> None:
    class Waiting(Service):
        name = "waiting"
        dependencies = ("elsewhere",)

    class Elsewhere(Service):
        name = "elsewhere"
        dependencies = ("logged",)

    near = nodes.make("near", Logged(), Waiting())
    far = nodes.make("far", Elsewhere())

    async def bring_up(broker: Broker) -> None:
        await broker.start(opens=False)
        await broker.open()

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(bring_up(near), bring_up(far))
