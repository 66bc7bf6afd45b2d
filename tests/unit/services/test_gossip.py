"""What nodes tell of others over TCP, row by row."""

from typing import Any

import pytest

from postroad.core.errors import MalformedPayloadError
from postroad.services.gossip import (
    NODES_MAX,
    Gone,
    GossipRequest,
    GossipResponse,
    Known,
    News,
    read_gone,
    read_known,
    read_news,
)
from postroad.services.kinds import VERSION, Kind
from postroad.services.packet_form import from_wire

NAMES: dict[str, Any] = {"ver": VERSION, "sender": "node-1"}
BAD_ROWS: list[Any] = [
    None,
    7,
    "text",
    {},
    [],
    [1, 2, 3, 4],
    ["a", "b", "c"],
    [1.5, 1, 1],
    [1, True, 1],
    [1, 1, 101],
    [1, 1, float("nan")],
    [-1, 1, 1],
]


def test_rows_of_requests_are_read() -> None:
    request = GossipRequest(online={"a": [2, 7, 35], "b": [3.0, 8.0, None]}, **NAMES)
    assert list(read_known(request)) == [Known("a", 2, 7, 35), Known("b", 3, 8, 0)]
    assert list(read_known(GossipRequest(**NAMES))) == []
    assert list(read_gone(GossipRequest(**NAMES))) == []
    assert list(read_news(GossipResponse(**NAMES))) == []
    offline = {"a": 3, "b": 4.0, "bad": "x", "worse": None, "yes": True, "": 1, "line\n": 1}
    response = GossipResponse(offline=offline, **NAMES)
    assert list(read_gone(response)) == [Gone("a", 3), Gone("b", 4)]
    online = {str(number): [1, 1, 1] for number in range(NODES_MAX + 1)}
    with pytest.raises(MalformedPayloadError):
        from_wire(Kind.GOSSIP_REQUEST, {"online": online, **NAMES})
    for row in BAD_ROWS:
        request = GossipRequest(online={"bad": row, "good": [1, 2, 3]}, **NAMES)
        assert list(read_known(request)) == [Known("good", 1, 2, 3)], row


def test_rows_of_responses_are_read() -> None:
    info = {"seq": 2}
    online = {"both": [info, 7, 35], "info": [info], "cpu": [8, 40]}
    response = GossipResponse(online=online, **NAMES)
    assert list(read_news(response)) == [
        News("both", info, 7, 35),
        News("info", info, None, None),
        News("cpu", None, 8, 40),
    ]
    response = GossipResponse(online={"a": [{"seq": 2}, "x", 1]}, **NAMES)
    assert list(read_news(response)) == [News("a", {"seq": 2}, None, None)]
    for row in (*BAD_ROWS, [7], [None, 1, 1], ["a", 1], [1, "a"]):
        response = GossipResponse(online={"bad": row, "good": [1, 2]}, **NAMES)
        assert list(read_news(response)) == [News("good", None, 1, 2)], row
