"""Packets as objects: what is written, what is taken from others, and what is not."""

from itertools import product
from typing import Any

import pytest
from msgspec import UNSET

from postroad.core.errors import MalformedPayloadError
from postroad.services.errors import VersionRefused
from postroad.services.kinds import VERSION, Kind
from postroad.services.packet_fields import ID_LENGTH_MAX, NODE_ID_LENGTH_MAX, WHOLE_MAX
from postroad.services.packet_form import from_wire, to_wire
from postroad.services.packets import (
    GROUPS_MAX,
    PACKETS,
    Discover,
    Event,
    EventAck,
    Heartbeat,
    Info,
    Ping,
    Pong,
    Request,
    Response,
    StreamProgress,
)
from tests.support.cases import each, naming

NAMES: dict[str, Any] = {"ver": VERSION, "sender": "node-1"}
LEAST: dict[Kind, dict[str, Any]] = {
    Kind.DISCOVER: {},
    Kind.DISCONNECT: {},
    Kind.INFO: {"services": []},
    Kind.HEARTBEAT: {},
    Kind.REQUEST: {"id": "1", "action": "math.add"},
    Kind.RESPONSE: {"id": "1", "success": True},
    Kind.EVENT: {"event": "user.created"},
    Kind.EVENT_ACK: {"id": "1", "success": True},
    Kind.STREAM_PROGRESS: {"id": "1", "isRequest": True},
    Kind.PING: {"time": 1},
    Kind.PONG: {"time": 1, "arrived": 2},
    Kind.GOSSIP_HELLO: {"host": "here", "port": 1},
    Kind.GOSSIP_REQUEST: {},
    Kind.GOSSIP_RESPONSE: {},
}


def read(kind: Kind, **fields: Any) -> Any:
    """Read the least packet of a kind, with some fields besides."""
    return from_wire(kind, {**LEAST[kind], **NAMES, **fields})


def test_missing_fields_have_defaults_of_their_own() -> None:
    assert set(PACKETS) == set(Kind) == set(LEAST)
    assert all(it.KIND is kind for kind, it in PACKETS.items())
    request = read(Kind.REQUEST)
    assert (request.params, request.meta, request.headers) == ({}, {}, {})
    assert (request.level, request.timeout, request.stream) == (1, None, False)
    assert request.seq is UNSET
    response = read(Kind.RESPONSE)
    assert (response.data, response.meta, response.headers) == (None, {}, {})
    assert response.error is response.stream is response.seq is UNSET
    event = read(Kind.EVENT)
    assert (event.id, event.data, event.broadcast, event.level) == (None, None, False, 1)
    assert event.groups is UNSET
    assert read(Kind.REQUEST).meta is not read(Kind.REQUEST).meta
    assert read(Kind.REQUEST, timeout=-1).timeout == 0
    assert "new" not in to_wire(read(Kind.REQUEST, new=1))
    loads: list[Any] = ["busy", -1, float("nan"), [], True]
    for cpu in loads:
        assert read(Kind.HEARTBEAT, cpu=cpu).cpu is None, cpu
    wires: list[Any] = [None, 1, "text", [], [{}], b"bytes"]
    for wire, kind in product(wires, Kind):
        with naming((wire, kind)), pytest.raises(MalformedPayloadError, match="not an object"):
            from_wire(kind, wire)


@each(*Kind)
def test_packet_of_each_kind_is_read_and_written(kind: Kind) -> None:
    packet = read(kind)
    assert type(packet) is PACKETS[kind]
    assert packet.sender == "node-1"
    packet = read(kind)
    assert from_wire(kind, to_wire(packet)) == packet
    assert list(to_wire(read(kind)))[-2:] == ["ver", "sender"]


@each(
    (
        Request(id="1", action="a", **NAMES),
        "id action params meta headers timeout level tracing parentID requestID caller stream",
    ),
    (
        Request(id="1", action="a", stream=True, seq=0, **NAMES),
        "id action params meta headers timeout level tracing parentID requestID caller stream seq",
    ),
    (Response(id="1", success=True, **NAMES), "id meta headers success data"),
    (
        Response(id="1", success=False, error={}, stream=False, seq=1, **NAMES),
        "id meta headers success data error stream seq",
    ),
    (
        Event(event="e", groups=["g"], **NAMES),
        "id event data groups broadcast meta headers level tracing parentID requestID caller "
        "needAck",
    ),
    (
        Event(event="e", **NAMES),
        "id event data broadcast meta headers level tracing parentID requestID caller needAck",
    ),
    (EventAck(id="1", success=True, **NAMES), "id success group"),
    (
        StreamProgress(id="1", is_request=True, sent=1, arrived=1, received=1, **NAMES),
        "id isRequest sent arrived received isCancelled",
    ),
    (Heartbeat(cpu=1, **NAMES), "cpu"),
    (Ping(time=1, **NAMES), "time id"),
    (Pong(time=1, arrived=2, **NAMES), "time id arrived"),
    (
        Info(services=[], instance_id="i", seq=1, **NAMES),
        "services ipList hostname client config instanceID metadata seq",
    ),
    (Discover(**NAMES), ""),
)
def test_fields_are_in_the_order_of_the_original(packet: Any, names: str) -> None:
    assert list(to_wire(packet)) == [*names.split(), "ver", "sender"]


@each(
    (Kind.REQUEST, {"meta": {}, "headers": {}, "level": 1, "stream": False, "seq": UNSET}),
    (Kind.RESPONSE, {"meta": {}, "error": UNSET, "stream": UNSET}),
    (Kind.EVENT, {"groups": UNSET, "broadcast": False}),
    (Kind.HEARTBEAT, {"cpu": None, "seq": UNSET}),
    (Kind.GOSSIP_REQUEST, {"online": UNSET}),
)
def test_null_is_as_good_as_absent(kind: Kind, defaults: dict[str, Any]) -> None:
    for field, default in defaults.items():
        assert getattr(read(kind, **{field: None}), field) == default, field


def test_values_of_users_are_not_repaired() -> None:
    assert read(Kind.REQUEST, params=None).params is None
    assert read(Kind.REQUEST, params=None, meta=None).params is None
    assert read(Kind.RESPONSE, data=None, meta=None).data is None
    response = read(Kind.RESPONSE, headers=None)
    assert response.headers is None
    assert to_wire(response)["headers"] is None
    params = {"a": None, "timeout": -1, "level": 1.0}
    assert read(Kind.REQUEST, params=params, meta=None).params == params
    assert read(Kind.REQUEST, params=7.0, meta=None).params == 7.0
    assert type(read(Kind.REQUEST, params=7.0, meta=None).params) is float


@each(
    (Kind.REQUEST, "level"),
    (Kind.REQUEST, "seq"),
    (Kind.RESPONSE, "seq"),
    (Kind.EVENT, "level"),
    (Kind.HEARTBEAT, "seq"),
    (Kind.GOSSIP_HELLO, "port"),
)
def test_whole_numbers_may_be_floats(kind: Kind, field: str) -> None:
    value = getattr(read(kind, **{field: 7.0}), field)
    assert value == 7
    assert type(value) is int


@each(
    (Kind.REQUEST, "id", [None, 7, "x" * (ID_LENGTH_MAX + 1)]),
    (Kind.REQUEST, "action", ["", ["a"]]),
    (Kind.REQUEST, "meta", ["text", {1: 2}]),
    (Kind.REQUEST, "headers", [[]]),
    (Kind.REQUEST, "level", [-1, 1.5, WHOLE_MAX + 1, True]),
    (Kind.REQUEST, "timeout", [float("nan"), float("inf"), "soon"]),
    (Kind.REQUEST, "stream", [1, True]),
    (Kind.REQUEST, "seq", [-1]),
    (Kind.REQUEST, "sender", ["", None, "x" * (NODE_ID_LENGTH_MAX + 1), "node\r\nPUB"]),
    (Kind.RESPONSE, "success", [None, "yes"]),
    (Kind.RESPONSE, "error", ["text"]),
    (Kind.RESPONSE, "stream", [True]),
    (Kind.EVENT, "event", [None]),
    (Kind.EVENT, "groups", ["all", [1], ["g"] * (GROUPS_MAX + 1)]),
    (Kind.INFO, "services", [{}, None]),
    (Kind.PING, "time", [None]),
    (Kind.PONG, "arrived", ["now"]),
    (Kind.GOSSIP_HELLO, "port", [0, 70_000]),
    (Kind.GOSSIP_REQUEST, "online", [[]]),
)
def test_what_would_do_harm_is_refused(kind: Kind, field: str, values: list[Any]) -> None:
    for value in values:
        with naming(value), pytest.raises(MalformedPayloadError):
            read(kind, **{field: value})
    with pytest.raises(MalformedPayloadError):
        read(Kind.REQUEST, stream=True, seq=None)


def test_version_that_is_missing_or_unknown_is_refused() -> None:
    for ver in ("4", 5, 5.0, None, "", ["5"]):
        with naming(ver), pytest.raises(VersionRefused) as caught:
            read(Kind.DISCOVER, ver=ver)
        assert (caught.value.version, caught.value.sender) == (ver, "node-1"), ver
    with pytest.raises(VersionRefused):
        from_wire(Kind.DISCOVER, {"sender": "node-1"})
    with pytest.raises(VersionRefused):
        from_wire(Kind.REQUEST, {"ver": "9", "sender": 7, "id": []})
    assert read(Kind.GOSSIP_REQUEST, ver="4").ver == "4"
    assert from_wire(Kind.GOSSIP_REQUEST, {"sender": "node-1"}).sender == "node-1"
    for ver in ("4", 5, None):
        wire = {**LEAST[Kind.REQUEST], "sender": "node-1", "ver": ver}
        assert from_wire(Kind.REQUEST, wire, checks_version=False).ver == ver, ver
        del wire["ver"]
        assert from_wire(Kind.REQUEST, wire, checks_version=False).ver is None, ver
