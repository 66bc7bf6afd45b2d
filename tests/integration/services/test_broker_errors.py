"""Errors of actions: every sort gets to the caller, and nothing keeps a caller waiting."""

import asyncio
from typing import Any

import pytest

from postroad.core.errors import MessageTooLargeError, MessagingError
from postroad.services import errors
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import (
    MoleculerError,
    RemoteError,
    RequestRejectedError,
    ServiceNotFoundError,
    UnsendablePacket,
    ValidationError,
)
from postroad.services.kinds import Kind
from postroad.services.service import Service, action, event
from postroad.services.transporters import MemoryTransporter
from tests.support.deadlines import eventually
from tests.support.services.nodes import SHORT, Gate, Nodes, raw_service

CLASSES = [
    it
    for it in vars(errors).values()
    if isinstance(it, type) and issubclass(it, MoleculerError) and it is not RemoteError
]


class Odd(BaseException):
    """Not even an Exception."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Failing(Service):
    """Raises, or returns, what the test says."""

    name = "failing"

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        self.returned: Any = None
        self.meta: dict[str, Any] = {}
        self.gate = Gate()

    @action
    async def later(self, ctx: Context) -> Any:
        await asyncio.sleep(0)
        return self.at_once(ctx)

    @action
    def at_once(self, ctx: Context) -> Any:
        ctx.meta.update(self.meta)
        if self.raised is not None:
            raise self.raised
        return self.returned

    @action
    async def wait(self, ctx: Context) -> None:
        await self.gate.passed()

    @event("later")
    async def on_later(self, ctx: Context) -> None:
        self.at_once(ctx)

    @event("at_once")
    def on_at_once(self, ctx: Context) -> None:
        self.at_once(ctx)


@pytest.fixture
async def failing(nodes: Nodes) -> Failing:
    service = Failing()
    await nodes.add("near", service)
    await nodes.add("far")
    return service


@pytest.fixture
def near(failing: Failing, nodes: Nodes) -> Broker:
    return nodes.brokers[0]


@pytest.fixture
def far(failing: Failing, nodes: Nodes) -> Broker:
    return nodes.brokers[1]


async def test_every_class_crosses_as_it_is(failing: Failing, far: Broker) -> None:
    told = {"action": "some.action", "nodeID": "there", "level": 5}
    for kind in CLASSES:
        failing.raised = kind("a text", 567, "SOME_TYPE", told, retryable=True)
        for name in ("later", "at_once"):
            with pytest.raises(kind) as caught:
                await far.call(f"failing.{name}")
            error = caught.value
            assert type(error) is kind
            assert (error.name, error.detail, error.status) == (kind.__name__, "a text", 567)
            assert (error.type, error.data, error.retryable) == ("SOME_TYPE", told, True)
            assert (error.node_id, error.stack) == ("near", None)


async def test_names_nobody_knows_are_kept(failing: Failing, near: Broker, far: Broker) -> None:
    class OutOfPaper(MoleculerError):
        """Of this program alone."""

    failing.raised = OutOfPaper("tray 2", 507, "PAPER", {"tray": 2})
    with pytest.raises(RemoteError) as caught:
        await far.call("failing.later")
    assert (caught.value.name, caught.value.status) == ("OutOfPaper", 507)
    assert (caught.value.type, caught.value.data) == ("PAPER", {"tray": 2})
    with pytest.raises(OutOfPaper):
        await near.call("failing.later")


async def test_errors_of_python_are_told_by_name(
    failing: Failing, near: Broker, far: Broker
) -> None:
    cases: list[tuple[BaseException, str]] = [
        (KeyError("k"), "'k'"),
        (ValueError("half a \ud800 character"), "half a ? character"),
        (Odd("odd"), "odd"),
        (ExceptionGroup("many", [ValueError(1)]), "many (1 sub-exception)"),
        (Unspeakable(), "Unspeakable, whose text cannot be told"),
        (StopAsyncIteration("end"), "end"),
    ]
    for raised, text in cases:
        failing.raised = raised
        for name in ("later", "at_once"):
            with pytest.raises(RemoteError) as caught:
                await far.call(f"failing.{name}")
            assert (caught.value.name, caught.value.detail) == (type(raised).__name__, text)
            assert (caught.value.status, caught.value.retryable) == (500, False)
    failing.raised = KeyError("k")
    for name in ("later", "at_once"):
        with pytest.raises(KeyError) as own:
            await near.call(f"failing.{name}")
        assert own.value is failing.raised
    failing.raised = MessagingError("full", retryable=True)
    with pytest.raises(RemoteError) as caught:
        await far.call("failing.later")
    assert caught.value.retryable


async def test_stacks_are_told_to_those_who_may_know(nodes: Nodes) -> None:
    service = Failing()
    service.raised = KeyError("k")
    await nodes.add("near", service, tells_stacks=True)
    far = await nodes.add("far")
    with pytest.raises(RemoteError) as caught:
        await far.call("failing.later")
    assert "test_broker_errors.py" in str(caught.value.stack)


@pytest.mark.parametrize("name", ["later", "at_once"])
async def test_what_cannot_be_sent_is_answered(failing: Failing, far: Broker, name: str) -> None:
    ring: list[Any] = []
    ring.append(ring)
    cases: list[tuple[Any, Any]] = [(object(), {}), (1, {"x": object()}), (ring, {})]
    for returned, meta in cases:
        failing.returned, failing.meta = returned, meta
        with pytest.raises(RemoteError, match=r"cannot be sent|nested") as caught:
            await far.call(f"failing.{name}")
        assert caught.value.name == UnsendablePacket.__name__
    failing.raised = MoleculerError("with data", data=object())
    with pytest.raises(MoleculerError, match="with data") as failure:
        await far.call(f"failing.{name}")
    assert failure.value.data is None
    status: Any = object()
    failing.raised = MoleculerError("with a status", status)
    with pytest.raises(MoleculerError, match="an error that cannot be sent"):
        await far.call(f"failing.{name}")


class Small(MemoryTransporter):
    """Carries little at once."""

    packet_bytes_max = 6_000

    def publish(self, kind: Kind, node_id: str | None, data: bytes) -> None:
        self._check_size(data)
        super().publish(kind, node_id, data)


async def test_what_is_too_large_is_answered(nodes: Nodes) -> None:
    service = Failing()
    near = Broker("near", transporter=Small(nodes.hub), **SHORT)
    near.add(service)
    async with near:
        far = await nodes.add("far")
        await far.wait_for_services("failing", timeout_s=30)
        service.returned = "x" * 8_000
        for name in ("later", "at_once"):
            with pytest.raises(RemoteError, match="a packet of 8") as caught:
                await far.call(f"failing.{name}")
            assert caught.value.name == "MessageTooLargeError"
        service.raised = MoleculerError("large", data="x" * 8_000)
        with pytest.raises(MoleculerError, match="large") as failure:
            await far.call("failing.later")
        assert failure.value.data is None
        with pytest.raises(MessageTooLargeError):
            await near.call("$node.list", {"x": "x" * 8_000}, node_id="far")


async def test_params_that_cannot_be_sent_are_not(failing: Failing, far: Broker) -> None:
    with pytest.raises(UnsendablePacket):
        await far.call("failing.later", {"x": object()})
    with pytest.raises(UnsendablePacket):
        await far.call("failing.later", meta={"x": object()})
    assert far.statistics()["pending"] == 0


async def test_what_is_ended_is_answered(failing: Failing, far: Broker) -> None:
    failing.raised = asyncio.CancelledError()
    with pytest.raises(RequestRejectedError) as caught:
        await far.call("failing.later", timeout_s=5)
    assert caught.value.retryable


async def test_an_error_over_two_hops_keeps_where_it_began(nodes: Nodes, far: Broker) -> None:
    class Relay(Service):
        name = "relay"

        @action
        async def on(self, ctx: Context) -> Any:
            return await ctx.call("failing.later")

    failing = nodes.brokers[0].services()[0]
    assert isinstance(failing, Failing)
    failing.raised = ValidationError("no", data=[{"field": "x"}])
    await nodes.add("middle", Relay())
    with pytest.raises(ValidationError) as caught:
        await far.call("relay.on")
    assert (caught.value.node_id, caught.value.data) == ("near", [{"field": "x"}])


async def until_failed(broker: Broker, count: int) -> None:
    await eventually(lambda: broker.statistics()["eventsFailed"] == count, "all are counted")


async def test_a_handler_of_events_that_fails_harms_nobody(
    failing: Failing, near: Broker, far: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    failures = (ValueError("bad"), Odd("odd"))
    cases = [(name, raised) for name in ("later", "at_once") for raised in failures]
    for number, (name, raised) in enumerate(cases, 1):
        failing.raised = raised
        caplog.clear()
        await near.emit(name)
        await far.emit(name)
        await until_failed(near, 2 * number)
        assert f"failing failed on event {name}" in caplog.text
        failing.raised = None
        assert await far.call("failing.later") is None


async def test_an_error_that_makes_no_sense_is_still_one(nodes: Nodes) -> None:
    broker = await nodes.add("near")
    raw = await nodes.raw("raw")
    raw.introduce(raw_service("odd", "act"))
    await broker.wait_for_services("odd", timeout_s=30)
    answers: list[dict[str, Any]] = [
        {"success": False},
        {"success": False, "error": {}},
        {"success": False, "error": {"name": 5, "message": [], "code": {}, "data": 1}},
        {"success": False, "error": {"name": "ServiceNotFoundError", "retryable": "yes"}},
    ]
    failures: list[MoleculerError] = []
    for number, answer in enumerate(answers):
        call = asyncio.ensure_future(broker.call("odd.act"))
        request = await raw.next(Kind.REQUEST, number + 1)
        raw.send(Kind.RESPONSE, "near", id=request["id"], **answer)
        with pytest.raises(MoleculerError) as caught:
            await call
        failures.append(caught.value)
    assert {it.node_id for it in failures} == {"raw"}
    assert isinstance(failures[-1], ServiceNotFoundError)
