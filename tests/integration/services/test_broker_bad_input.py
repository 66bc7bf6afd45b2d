"""What other nodes may send: late, doubled, too much, of another version, or nonsense."""

import asyncio
from typing import Any

import msgspec
import pytest

from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import (
    QueueIsFullError,
    RequestTimeoutError,
    ServiceNotFoundError,
)
from postroad.services.kinds import Kind
from postroad.services.service import Service, action, event
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.services.nodes import Gate, Nodes, RawNode, raw_service


class Worker(Service):
    name = "worker"

    def __init__(self) -> None:
        self.gate = Gate()
        self.runs = 0

    @action
    async def act(self, ctx: Context) -> dict[str, Any]:
        self.runs += 1
        return {"params": ctx.params, "meta": ctx.meta, "level": ctx.level, "id": ctx.id}

    @action
    async def wait(self, ctx: Context) -> str:
        await self.gate.passed()
        return "done"

    @action
    async def timed(self, ctx: Context) -> float:
        return ctx.timeout_s

    @event("work")
    async def on_work(self, ctx: Context) -> None:
        self.runs += 1


@pytest.fixture
async def worker(nodes: Nodes) -> Worker:
    worker = Worker()
    await nodes.add("near", worker, serving_max=5, pending_max=3)
    return worker


@pytest.fixture
def near(worker: Worker, nodes: Nodes) -> Broker:
    return nodes.brokers[0]


@pytest.fixture
async def raw(worker: Worker, nodes: Nodes) -> RawNode:
    return await nodes.raw("raw")


def counted(broker: Broker, name: str) -> int:
    found: int = broker.statistics()["transit"][name]
    return found


async def is_well(raw: RawNode) -> bool:
    return (await raw.ask("near", "worker.act"))["success"] is True


# Responses.


async def begun(
    raw: RawNode, near: Broker, timeout_s: float = 5
) -> tuple[asyncio.Future[Any], str]:
    """A call of ours that the other node has got."""
    raw.introduce(raw_service("odd", "act"))
    await near.wait_for_services("odd", timeout_s=DEADLINE_S)
    call = asyncio.ensure_future(near.call("odd.act", timeout_s=timeout_s))
    return call, (await raw.next(Kind.REQUEST))["id"]


async def test_late_and_doubled_responses_are_counted(near: Broker, raw: RawNode) -> None:
    call, id = await begun(raw, near)
    for _ in range(3):
        raw.send(Kind.RESPONSE, "near", id=id, success=True, data=5)
    raw.send(Kind.RESPONSE, "near", id="nobody waits for this", success=True)
    assert await call == 5
    await eventually(lambda: near.statistics()["orphans"] == 3, "the others are orphans")
    assert near.statistics()["pending"] == 0


async def test_a_response_may_come_from_another_node_with_nothing(
    nodes: Nodes, near: Broker
) -> None:
    raw, other = await nodes.raw("raw"), await nodes.raw("other")
    call, id = await begun(raw, near)
    other.send(Kind.RESPONSE, "near", id=id, success=True, data=5, meta=None, headers=None)
    assert await call == 5


async def test_a_response_that_makes_no_sense_leaves_the_call_to_its_time(
    near: Broker, raw: RawNode
) -> None:
    call, id = await begun(raw, near, timeout_s=0.1)
    raw.send(Kind.RESPONSE, "near", id=id, success="yes")
    raw.send(Kind.RESPONSE, "near", id=id)
    raw.send(Kind.RESPONSE, "near", id=5, success=True)
    with pytest.raises(RequestTimeoutError):
        await call
    assert counted(near, "malformed") == 3


async def test_too_many_calls_wait(near: Broker, raw: RawNode) -> None:
    first, _ = await begun(raw, near)
    calls = [first, *(asyncio.ensure_future(near.call("odd.act", timeout_s=5)) for _ in range(2))]
    await raw.next(Kind.REQUEST, 3)
    with pytest.raises(QueueIsFullError) as caught:
        await near.call("odd.act")
    assert caught.value.data == {"action": "odd.act", "nodeID": "raw"}
    for packet in raw.packets(Kind.REQUEST):
        raw.send(Kind.RESPONSE, "near", id=packet["id"], success=True)
    await asyncio.gather(*calls)
    assert len(raw.packets(Kind.REQUEST)) == 3


# Requests.


async def test_the_least_of_a_request_is_enough(raw: RawNode) -> None:
    raw.send(Kind.REQUEST, "near", id="1", action="worker.act")
    answer = await raw.next(Kind.RESPONSE)
    assert answer["data"] == {"params": {}, "meta": {}, "level": 1, "id": "1"}
    assert [*answer] == ["id", "meta", "headers", "success", "data", "ver", "sender"]
    times: list[tuple[Any, float]] = [(0, 0), (None, 10), (250, 0.25), (-5, 0), (0.5, 0.0005)]
    for timeout, expected in times:
        assert (await raw.ask("near", "worker.timed", timeout=timeout))["data"] == expected


async def test_a_request_on_the_wire(near: Broker, raw: RawNode) -> None:
    await begun(raw, near)
    packet = raw.packets(Kind.REQUEST)[0]
    assert [*packet] == [
        *("id", "action", "params", "meta", "headers", "timeout", "level", "tracing"),
        *("parentID", "requestID", "caller", "stream", "ver", "sender"),
    ]
    assert packet["requestID"] == packet["id"]
    assert (packet["params"], packet["timeout"], packet["level"]) == ({}, 5_000, 1)
    raw.send(Kind.DISCONNECT)


async def test_each_request_is_answered_once(raw: RawNode) -> None:
    for asked in ("worker.act", "worker.nothing", "worker.timed"):
        await raw.ask("near", asked)
    # What comes from one node stays in order: after this there is nothing more of the others.
    await raw.ask("near", "worker.act")
    answered = [it["id"] for it in raw.packets(Kind.RESPONSE)]
    assert len(answered) == len(set(answered)) == 4


async def test_a_request_for_nothing_is_answered(raw: RawNode) -> None:
    answer = await raw.ask("near", "nobody.has")
    error = answer["error"]
    assert (answer["success"], answer["headers"], answer["data"]) == (False, None, None)
    assert (error["name"], error["code"], error["type"]) == (
        *("ServiceNotFoundError", 404, "SERVICE_NOT_FOUND"),
    )
    assert error["data"] == {"action": "nobody.has", "nodeID": "near"}
    assert error["retryable"] is True


async def test_a_flood_of_requests_is_refused(near: Broker, worker: Worker, raw: RawNode) -> None:
    for number in range(8):
        raw.send(Kind.REQUEST, "near", id=str(number), action="worker.wait")
    await raw.next(Kind.RESPONSE, 3)
    refused = raw.packets(Kind.RESPONSE)
    assert {it["error"]["name"] for it in refused} == {"QueueIsFullError"}
    assert {it["error"]["code"] for it in refused} == {429}
    assert near.statistics()["serving"] == 5
    worker.gate.open()
    await raw.next(Kind.RESPONSE, 8)
    assert await is_well(raw)
    assert near.statistics()["serving"] == 0


ACT = {"id": "1", "action": "worker.act"}
SENSELESS: list[dict[str, Any]] = [
    *({"id": "1"}, {"action": "worker.act"}, {"id": "1", "action": 5}),
    *({**ACT, "meta": [1]}, {**ACT, "level": "deep"}, {**ACT, "id": "x" * 2_000}),
    *({**ACT, "sender": sender} for sender in (5, "", "a\r\nb")),
]
GARBAGE = (b"", b"null", b"[]", b"{", b'{"ver":"5"}', b"\xff" * 9, b"5")


async def test_requests_that_make_no_sense_are_dropped(
    near: Broker, worker: Worker, raw: RawNode
) -> None:
    for number, fields in enumerate(SENSELESS, 1):
        raw.send(Kind.REQUEST, "near", **fields)
        assert await is_well(raw)
        assert (counted(near, "malformed"), worker.runs) == (number, number), fields


async def test_garbage_of_every_kind_is_dropped(near: Broker, raw: RawNode) -> None:
    count = 0
    for kind in (it for it in Kind if not it.name.startswith("GOSSIP")):
        for data in GARBAGE:
            is_for_all = kind in (Kind.HEARTBEAT, Kind.DISCONNECT)
            raw.send_bytes(kind, None if is_for_all else "near", data)
            assert await is_well(raw)
            count += 1
            dropped = counted(near, "malformed") + counted(near, "versions_refused")
            assert dropped == count, (kind, data)


async def test_other_versions_are_refused(near: Broker, raw: RawNode) -> None:
    versions: list[Any] = ["4", "6", 5, None, ["5"]]
    for number, version in enumerate(versions, 1):
        raw.send(Kind.REQUEST, "near", id="1", action="worker.act", ver=version)
        raw.send(Kind.HEARTBEAT, None, ver=version)
        assert await is_well(raw)
        assert counted(near, "versions_refused") == 2 * number, version


async def test_other_versions_are_taken_by_who_wants_to(nodes: Nodes) -> None:
    await nodes.add("near", Worker(), checks_version=False)
    raw = await nodes.raw("raw")
    raw.send(Kind.REQUEST, "near", id="1", action="worker.act", ver="4")
    assert (await raw.next(Kind.RESPONSE))["success"]


# What others offer.


async def test_one_bad_service_harms_only_itself(
    near: Broker, raw: RawNode, caplog: pytest.LogCaptureFixture
) -> None:
    strange = raw_service("strange", "act")
    strange["actions"]["strange.act"]["strategy"] = "Astrology"
    strange["actions"]["strange.act"]["retryPolicy"] = "often"
    raw.introduce(
        raw_service("good", "act"),
        {"name": 5},
        {"name": "half", "fullName": "half", "actions": {"a": {}, "half.b": {"name": "half.b"}}},
        None,  # type: ignore[arg-type]
        strange,
    )
    await near.wait_for_services(["good", "half", "strange"], timeout_s=DEADLINE_S)
    for name in ("good.act", "half.b", "strange.act"):
        call = asyncio.ensure_future(near.call(name, timeout_s=5))
        number = len(raw.packets(Kind.REQUEST)) + 1
        request = await raw.next(Kind.REQUEST, number)
        raw.send(Kind.RESPONSE, "near", id=request["id"], success=True, data=name)
        assert await call == name
    with pytest.raises(ServiceNotFoundError):
        await near.call("a")
    assert "left out of what raw offers" in caplog.text
    assert "Astrology" in caplog.text


async def test_an_info_that_makes_no_sense_is_dropped(near: Broker, raw: RawNode) -> None:
    senseless: list[dict[str, Any]] = [{"services": 5}, {"seq": "many"}, {"seq": -1}]
    for fields in (*senseless, {"instanceID": 5}):
        raw.send(Kind.INFO, None, **{"instanceID": "x", "seq": 1, "services": [], **fields})
        assert await is_well(raw)
        assert near.registry.node("raw") is None, fields


async def test_an_older_info_changes_nothing(near: Broker, raw: RawNode) -> None:
    raw.introduce(raw_service("odd", "act"), seq=5)
    await near.wait_for_services("odd", timeout_s=DEADLINE_S)
    raw.introduce(seq=4)
    raw.introduce(seq=5)
    assert await is_well(raw)
    assert near.registry.has_service("odd")
    raw.introduce(seq=6)
    await eventually(lambda: not near.registry.has_service("odd"), "the newer one counts")


async def test_a_node_that_nobody_knows_may_call_and_emit(
    near: Broker, worker: Worker, raw: RawNode
) -> None:
    assert near.registry.node("raw") is None
    raw.send(Kind.EVENT, "near", event="work")
    assert await is_well(raw)
    await eventually(lambda: worker.runs == 2, "the event is handled")
    raw.send(Kind.HEARTBEAT, None, cpu="much")
    await raw.next(Kind.DISCOVER)


async def test_a_packet_that_contains_itself_cannot_be_but_depth_can(
    near: Broker, raw: RawNode
) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    packet = {"ver": "5", "sender": "raw", "id": "1", "action": "worker.act"}
    whole = msgspec.json.encode(packet)[:-1] + b',"params":' + deep + b"}"
    raw.send_bytes(Kind.REQUEST, "near", whole)
    assert await is_well(raw)
    assert counted(near, "malformed") == 1
