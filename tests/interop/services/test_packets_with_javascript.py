"""Every kind of packet, there and back, with a real node of the original system."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from postroad.core.errors import MalformedPayloadError
from postroad.services.info_form import read_info
from postroad.services.kinds import VERSION, Kind
from postroad.services.packet_form import to_wire
from postroad.services.packets import (
    Disconnect,
    Discover,
    Event,
    EventAck,
    Heartbeat,
    Info,
    Ping,
    Pong,
    Response,
)
from postroad.services.serializers import JsonSerializer
from postroad.services.topics import Topics
from tests.interop.services.talk import THEM, US, Talk
from tests.support.services.javascript import marked

pytestmark = pytest.mark.timeout(600)

NAMES: dict[str, Any] = {"ver": VERSION, "sender": US}
NUMBERS = [0, -1, 255, -257, 65_536, 2**31, 2**32 - 1, -(2**31) - 1, 1_700_000_000_123, 2**53 - 1]
TEXTS = ["", "text", 'é\u2028 \U0001f600 \x00\x1f\x7f"\\/', "long " * 20_000]
VALUES: list[Any] = [
    *(None, True, *NUMBERS, 1.5, -0.1, 123_456.789, *TEXTS),
    *([], {}, [1, [2, [3, {"four": 4}]]], {"a": {"b": {"c": [None, False, "d"]}}}),
    list(range(1_000)),
    {f"key {number}": number for number in range(300)},
]


def node(talk: Talk, name: str) -> Any:
    (found,) = (it for it in talk.peer.ask("nodes") if it["id"] == name)
    return found


def test_infos_are_understood_on_both_sides(talk: Talk) -> None:
    talk.tell(Discover(**NAMES))
    info = talk.hear_one(Kind.INFO)
    read = read_info(to_wire(info))
    services = {service.full_name: service for service in read.info.services}

    assert read.problems == ()
    assert info.sender == THEM
    assert read.info.client.type == "nodejs"
    assert set(services) == {"$node", "v2.lab"}
    assert {action.name for action in services["v2.lab"].actions} >= {
        "v2.lab.echo",
        "v2.lab.context",
    }
    assert [(it.name, it.group) for it in services["v2.lab"].events] == [
        ("lab.*", "watchers"),
        ("all.**", ""),
    ]

    info = talk.introduce()
    known = node(talk, US)

    assert known["available"]
    assert (known["seq"], known["instanceID"], known["hostname"]) == (info.seq, "first", "here")
    assert known["services"] == ["v1.desk"]
    assert {"v1.desk.ask", "v1.desk.send"} <= set(talk.peer.ask("actions"))


def test_heartbeats(talk: Talk) -> None:
    talk.peer.ask("beat")
    assert talk.hear_one(Kind.HEARTBEAT).sender == THEM

    talk.tell(Heartbeat(cpu=13.5, **NAMES))
    assert node(talk, US)["cpu"] == 13.5

    talk.tell(Heartbeat(cpu=1, seq=1, instance_id="second", **NAMES))
    assert talk.hear_one(Kind.DISCOVER).sender == THEM


def test_pings(talk: Talk) -> None:
    key = talk.peer.begin("ping", node=US)
    ping = talk.hear_one(Kind.PING)
    talk.tell(Pong(time=ping.time, id=ping.id, arrived=ping.time + 5, **NAMES))
    answer = talk.peer.ask("result", key=key)["answer"]

    assert answer["nodeID"] == US
    assert answer["elapsedTime"] >= 0
    assert isinstance(ping.time, int)

    talk.tell(Ping(time=1_700_000_000_123, id="mine", **NAMES))
    pong = talk.hear_one(Kind.PONG)

    assert (pong.time, pong.id) == (1_700_000_000_123, "mine")
    assert pong.arrived > pong.time


def test_values_there_and_back(talk: Talk) -> None:
    for value in VALUES:
        talk.tell(talk.request("v2.lab.echo", {"any": value}, meta={"user": value}))
        response = talk.hear_one(Kind.RESPONSE)

        assert response.success
        assert response.data == {"any": value}
        assert response.meta == {"user": value}


def test_bytes_and_times_there_and_back(talk: Talk) -> None:
    value = b"\x00\xff" * 300
    talk.tell(talk.request("v2.lab.echo", {"any": value}))
    data = talk.hear_one(Kind.RESPONSE).data

    if isinstance(talk.serializer, JsonSerializer):
        assert data == {"any": {"type": "Buffer", "data": list(value)}}
    else:
        assert data == {"any": value}

    time = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    if isinstance(talk.serializer, JsonSerializer):
        text = talk.peer.ask("write", payload={"it": marked(time)})
        assert bytes.fromhex(text) == b'{"it":"2026-01-02T03:04:05.678Z"}'
    else:
        talk.tell(talk.request("v2.lab.echo", {"any": time}))
        assert talk.hear_one(Kind.RESPONSE).data == {"any": time}


def test_integers_of_64_bits_are_exact(talk: Talk) -> None:
    if isinstance(talk.serializer, JsonSerializer):
        data = talk.serializer.serialize(talk.request("v2.lab.echo", {"n": 2**64 - 1}))
        assert b"18446744073709551615" in data
    elif talk.serializer.name == "CBOR":
        talk.tell(talk.request("v2.lab.echo", {"n": 2**64 - 1, "m": -(2**63), "big": 2**80}))
        assert talk.hear_one(Kind.RESPONSE).data == {"n": 2**64 - 1, "m": -(2**63), "big": 2**80}
    else:
        packet = talk.request("v2.lab.echo", {"n": 2**64 - 1})
        data = talk.serializer.serialize(packet)
        assert talk.serializer.deserialize(Kind.REQUEST, data) == packet


def test_everything_of_our_request_arrives(talk: Talk) -> None:
    request = talk.request(
        "v2.lab.context",
        {},
        meta={"user": "eve"},
        headers={"trace": "on"},
        timeout=5_000,
        level=3,
        parent_id="parent",
        caller="v1.desk",
    )
    talk.tell(request)
    response = talk.hear_one(Kind.RESPONSE)

    assert response.data == {
        "id": request.id,
        "level": 3,
        "meta": {"user": "eve", "seen": True},
        "headers": {"trace": "on"},
        "requestID": request.id,
        "parentID": "parent",
        "caller": "v1.desk",
        "nodeID": US,
        "timeout": 5_000,
    }
    assert response.meta == {"user": "eve", "seen": True}
    assert response.headers == {"reply": "yes"}

    talk.tell(talk.request("v2.lab.nothing", None))
    response = talk.hear_one(Kind.RESPONSE)
    assert response.success
    assert response.data is None


def test_everything_of_their_request_arrives(talk: Talk) -> None:
    options = {"meta": {"user": "eve"}, "headers": {"trace": "on"}, "timeout": 9_000}
    key = talk.peer.begin("call", action="v1.desk.ask", params={"a": 1}, options=options)
    request = talk.hear_one(Kind.REQUEST)

    assert request.sender == THEM
    assert (request.action, request.params) == ("v1.desk.ask", {"a": 1})
    assert (request.meta, request.headers) == ({"user": "eve"}, {"trace": "on"})
    assert (request.timeout, request.level, request.request_id) == (9_000, 1, request.id)
    assert request.stream is False
    talk.tell(Response(id=request.id, success=True, data={"sum": 7}, meta={"late": 1}, **NAMES))
    assert talk.peer.ask("result", key=key) == {"answer": {"sum": 7}}


def test_their_params_of_any_sort(talk: Talk) -> None:
    cases: list[Any] = [None, {}, [], 0, "text"]
    for params in cases:
        key = talk.peer.begin("call", action="v1.desk.ask", params=params)
        request = talk.hear_one(Kind.REQUEST)
        talk.tell(Response(id=request.id, success=True, data=request.params, **NAMES))

        assert request.params == params
        assert talk.peer.ask("result", key=key) == {"answer": params}


def test_their_events(talk: Talk) -> None:
    talk.peer.ask("emit", event="desk.opened", payload={"by": "eve"})
    event = talk.hear_one(Kind.EVENT)
    assert (event.event, event.data, event.broadcast) == ("desk.opened", {"by": "eve"}, False)
    assert event.groups == ["desk"]

    talk.peer.ask("broadcast", event="both.are.here", payload=marked({"raw": b"\x01"}))
    event = talk.hear_one(Kind.EVENT)
    assert event.broadcast
    assert event.need_ack is None


def test_events_and_their_acknowledgement(talk: Talk) -> None:
    talk.tell(
        Event(
            id="e-1",
            event="lab.fire",
            data={"where": "here"},
            groups=["watchers"],
            meta={"user": "eve"},
            headers={"trace": "on"},
            request_id="r-1",
            **NAMES,
        )
    )
    talk.tell(Event(event="all.is.well", broadcast=True, need_ack=True, **NAMES))
    talk.tell(Event(event="lab.fire", groups=["others"], **NAMES))
    fire, well = talk.peer.ask("heard")

    assert fire == {
        "name": "lab.fire",
        "data": {"where": "here"},
        "type": "emit",
        "groups": ["watchers"],
        "meta": {"user": "eve"},
        "headers": {"trace": "on"},
        "nodeID": US,
    }
    assert (well["name"], well["type"]) == ("all.is.well", "broadcast")

    talk.write(EventAck(id="e-1", success=True, group="watchers", **NAMES))


def test_our_disconnect(talk: Talk) -> None:
    talk.tell(Disconnect(**NAMES))
    assert not node(talk, US)["available"]


def test_their_topics_are_ours_until_they_stop(fresh_talk: Talk) -> None:
    peer = fresh_talk.peer
    fresh_talk.introduce()
    fresh_talk.tell(fresh_talk.request("v2.lab.nothing", {}))
    fresh_talk.tell(Ping(time=1, **NAMES))
    peer.begin("call", action="v1.desk.ask", params={})
    peer.wait_for("REQ")
    ours = Topics(THEM, "test")
    expected = {ours.name_of(kind) for kind in (Kind.DISCOVER, Kind.INFO)} | {
        ours.name_of(kind, US) for kind in (Kind.PONG, Kind.REQUEST, Kind.RESPONSE)
    }
    assert expected <= {it["topic"] for it in peer.sent}

    peer.ask("stop")
    kinds = [Topics(US, "test").parse(it["topic"]).kind for it in peer.sent]
    empty, last = (
        fresh_talk.serializer.deserialize(kind, bytes.fromhex(it["hex"]))
        for kind, it in zip(kinds[-2:], peer.sent[-2:], strict=True)
    )
    assert isinstance(empty, Info)
    assert empty.services == []
    assert isinstance(last, Disconnect)


def test_other_versions_are_dropped_on_both_sides(talk: Talk) -> None:
    for version in ("4", 5, None):
        wire = {**to_wire(talk.request("v2.lab.nothing", {})), "ver": version}
        data = bytes.fromhex(talk.peer.ask("write", payload=wire))
        talk.peer.ask("receive", kind="REQ", hex=data.hex())

        assert talk.peer.sent == [], version
        with pytest.raises(MalformedPayloadError, match="version"):
            talk.serializer.deserialize(Kind.REQUEST, data)


def test_the_least_they_take_is_the_least_we_take(talk: Talk) -> None:
    wire = {"ver": VERSION, "sender": US, "id": "least", "action": "v2.lab.nothing"}
    data = bytes.fromhex(talk.peer.ask("write", payload=wire))
    talk.peer.ask("receive", kind="REQ", hex=data.hex())

    assert talk.hear_one(Kind.RESPONSE).success
    request: Any = talk.serializer.deserialize(Kind.REQUEST, data)
    assert (request.meta, request.headers, request.level) == ({}, {}, 1)
