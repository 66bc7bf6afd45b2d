"""Middlewares: every hook, their order, and what they may break."""

import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import MoleculerClientError, RequestTimeoutError
from postroad.services.kinds import Kind
from postroad.services.middleware import Handler, Middleware
from postroad.services.schema import ActionInfo
from postroad.services.service import Service, action, event
from tests.support.deadlines import eventually
from tests.support.services.nodes import Nodes


class Worker(Service):
    name = "worker"

    @action
    def act(self, ctx: Context) -> Any:
        return ctx.params

    @action
    async def act_later(self, ctx: Context) -> Any:
        return ctx.params

    @event("work")
    def on_work(self, ctx: Context) -> None: ...


def around(log: list[str], name: str, next: Any) -> Any:
    async def run(*args: Any) -> Any:
        log.append(f"{name} in")
        try:
            return await next(*args)
        finally:
            log.append(f"{name} out")

    return run


WRAPPERS = {"local_action": "local ", "remote_action": "remote ", "local_event": "event "}
WRAPPERS |= dict.fromkeys(("call", "mcall", "emit", "broadcast", "broadcast_local"), "")
STEPS = ["created", "starting", "started", "stopping", "stopped"]
"""Of brokers and of services."""


class Everything(Middleware):
    """Uses all hooks."""

    def __init__(self, name: str = "") -> None:
        self.log: list[str] = []
        self._name = name

    def of(self, name: str) -> list[str]:
        return [it for it in self.log if it.startswith(name)]


def add_hooks() -> None:
    """Have all of them written down in the log."""

    def wrapper(hook: str) -> Any:
        def wrap(self: Everything, next: Any, of: Any = None) -> Any:
            name = WRAPPERS[hook] + of.name if of is not None else hook
            return around(self.log, f"{self._name}{name}", next)

        return wrap

    def noted(step: str) -> Any:
        def note(self: Everything, broker_or_service: Any) -> None:
            is_broker = isinstance(broker_or_service, Broker)
            name = broker_or_service.node_id if is_broker else broker_or_service.full_name
            self.log.append(f"{name} {step}")

        async def note_later(self: Everything, broker_or_service: Any) -> None:
            note(self, broker_or_service)

        return note if step == "created" else note_later

    for hook in WRAPPERS:
        setattr(Everything, hook, wrapper(hook))
    for step in STEPS:
        for whose in ("broker", "service"):
            setattr(Everything, f"{whose}_{step}", noted(step))


add_hooks()


async def test_the_lives_of_brokers_and_services(nodes: Nodes) -> None:
    everything = Everything()
    near = await nodes.add("near", Worker(), middlewares=[everything])
    await near.stop()
    for name in ("near", "worker", "$node"):
        assert everything.of(name) == [f"{name} {step}" for step in STEPS]
    assert everything.log[0] == "near created"
    assert everything.log[-1] == "near stopped"
    assert everything.log.index("worker stopped") > everything.log.index("near stopping")


@pytest.mark.parametrize("name", ["act", "act_later"])
async def test_calls_and_events(nodes: Nodes, name: str) -> None:
    at_near, at_far = Everything(), Everything()
    near = await nodes.add("near", Worker(), middlewares=[at_near])
    far = await nodes.add("far", middlewares=[at_far])
    for broker, own, where in ((near, at_near, "local"), (far, at_far, "remote")):
        at_near.log.clear()
        own.log.clear()
        assert await broker.call(f"worker.{name}", 5) == 5
        inner = f"{where} worker.{name}"
        assert own.log == ["call in", f"{inner} in", f"{inner} out", "call out"]
        own.log.clear()
        assert await broker.mcall([(f"worker.{name}", 6)]) == [6]
        assert own.log[0] == "mcall in"
        assert "call in" in own.log
        for send, said in ((broker.emit, "emit"), (broker.broadcast, "broadcast")):
            at_near.log.clear()
            own.log.clear()
            await send("work")
            assert own.log[0] == f"{said} in"
            await eventually(lambda: "event work out" in at_near.log, "it is handled")
    at_near.log.clear()
    await near.broadcast_local("work")
    assert at_near.log[0] == "broadcast_local in"


async def test_the_first_is_the_outermost(nodes: Nodes) -> None:
    log: list[str] = []
    first, second = Everything("first "), Everything("second ")
    first.log = second.log = log
    near = await nodes.add("near", Worker(), middlewares=[first, second])
    log.clear()
    await near.call("worker.act")
    assert log == [
        *("first call in", "second call in"),
        *("first local worker.act in", "second local worker.act in"),
        *("second local worker.act out", "first local worker.act out"),
        *("second call out", "first call out"),
    ]


async def test_a_middleware_may_change_what_it_likes(nodes: Nodes) -> None:
    class Changing(Middleware):
        def local_action(self, next: Handler, action: ActionInfo) -> Handler:
            async def run(ctx: Context) -> Any:
                ctx.params = {"was": ctx.params}
                return [await next(ctx)]

            return run

        def call(self, next: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def call(action: str, params: Any, options: Any) -> Any:
                if action == "worker.refused":
                    raise MoleculerClientError("not today")
                return await next(action.replace("old", "worker"), params, options)

            return call

    near = await nodes.add("near", Worker(), middlewares=[Changing()])
    far = await nodes.add("far")
    assert await near.call("old.act", 1) == [{"was": 1}]
    assert await far.call("worker.act", 1) == [{"was": 1}]
    with pytest.raises(MoleculerClientError, match="not today"):
        await near.call("worker.refused")


class Pressed(Middleware):
    """Compresses all that is sent."""

    def transporter_send(
        self, next: Callable[[str | None, bytes], bytes]
    ) -> Callable[[str | None, bytes], bytes]:
        return lambda node_id, data: next(node_id, zlib.compress(data))

    def transporter_receive(self, next: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        return lambda data: next(zlib.decompress(data))


async def test_bytes_may_be_changed_on_their_way(nodes: Nodes) -> None:
    near = await nodes.add("near", Worker(), middlewares=[Pressed()])
    far = await nodes.add("far", middlewares=[Pressed()])
    assert await far.call("worker.act", {"x": "y" * 1_000}) == {"x": "y" * 1_000}
    assert near.statistics()["transit"]["failures"] == 0
    # Packets that the middleware cannot read are lost, and no others.
    await nodes.make("plain").start()
    await eventually(lambda: near.statistics()["transit"]["failures"] > 0, "it is counted")
    assert await near.call("worker.act", 5) == 5


async def test_a_middleware_that_cannot_send_an_answer(nodes: Nodes) -> None:
    class Clogged(Middleware):
        is_clogged = False

        def transporter_send(
            self, next: Callable[[str | None, bytes], bytes]
        ) -> Callable[[str | None, bytes], bytes]:
            def send(node_id: str | None, data: bytes) -> bytes:
                if self.is_clogged and node_id == "far":
                    raise ValueError("clogged")
                return next(node_id, data)

            return send

    clogged = Clogged()
    near = await nodes.add("near", Worker(), middlewares=[clogged])
    far = await nodes.add("far")
    clogged.is_clogged = True
    for name in ("act", "act_later"):
        with pytest.raises(RequestTimeoutError):
            await far.call(f"worker.{name}", timeout_s=0.05)
    clogged.is_clogged = False
    assert await far.call("worker.act", 1) == 1
    assert near.statistics()["serving"] == 0


@pytest.mark.parametrize(
    "hook", ["broker_starting", "service_starting", "service_started", "broker_started"]
)
async def test_a_middleware_that_fails_at_the_start_ends_what_was_begun(
    nodes: Nodes, hook: str
) -> None:
    class Unwilling(Middleware):
        pass

    async def fail(self: Middleware, it: Any) -> None:
        raise OSError("unwilling")

    setattr(Unwilling, hook, fail)
    raw = await nodes.raw("raw")
    near = nodes.make("near", Worker(), middlewares=[Unwilling()])
    with pytest.raises(OSError, match="unwilling"):
        await near.start()
    assert not near.is_running
    if hook != "broker_starting":
        await raw.next(Kind.DISCONNECT)


async def test_a_service_that_is_launched_is_removed_if_a_middleware_fails(nodes: Nodes) -> None:
    class Unwilling(Middleware):
        async def service_started(self, service: Service) -> None:
            if service.name == "worker":
                raise OSError("unwilling")

    near = await nodes.add("near", middlewares=[Unwilling()])
    with pytest.raises(OSError, match="unwilling"):
        await near.launch(Worker())
    assert near.services() == []
    assert not near.registry.has_service("worker")


async def test_a_middleware_that_fails_at_the_end_does_not_stop_it(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(Middleware):
        pass

    async def fail(self: Middleware, it: Any) -> None:
        raise OSError("clumsy")

    for hook in ("broker_stopping", "broker_stopped", "service_stopping", "service_stopped"):
        setattr(Clumsy, hook, fail)

    raw = await nodes.raw("raw")
    everything = Everything()
    near = await nodes.add("near", Worker(), middlewares=[Clumsy(), everything])
    await near.stop()
    assert everything.log[-1] == "near stopped"
    assert "worker stopped" in everything.log
    assert caplog.text.count("OSError: clumsy") == 6
    await raw.next(Kind.DISCONNECT)
