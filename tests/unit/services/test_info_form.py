"""The body of INFO packets: read leniently, written as the real node writes it."""

from typing import Any

import pytest

from postroad.core.errors import MalformedPayloadError
from postroad.services.info_form import (
    ENTRIES_MAX,
    PROBLEMS_MAX,
    SERVICES_MAX,
    read_info,
    write_info,
)
from postroad.services.schema import ActionInfo, ClientInfo, EventInfo, NodeInfo, ServiceInfo
from tests.support.cases import each

BODY: dict[str, Any] = {
    "services": [
        {
            "name": "posts",
            "version": 2,
            "fullName": "v2.posts",
            "settings": {"a": 1},
            "metadata": {"b": 2},
            "actions": {
                "v2.posts.find": {"cache": True, "rawName": "find", "name": "v2.posts.find"}
            },
            "events": {"user.*": {"group": "mail", "name": "user.*"}},
        }
    ],
    "ipList": ["10.0.0.1"],
    "hostname": "h",
    "client": {"type": "nodejs", "version": "0.15.2", "langVersion": "v20"},
    "config": {},
    "instanceID": "i-1",
    "metadata": {"m": 1},
    "seq": 3,
}
INFO = NodeInfo(
    instance_id="i-1",
    seq=3,
    services=(
        ServiceInfo(
            name="posts",
            full_name="v2.posts",
            version=2,
            settings={"a": 1},
            metadata={"b": 2},
            actions=(
                ActionInfo(name="v2.posts.find", raw_name="find", definition={"cache": True}),
            ),
            events=(EventInfo(name="user.*", group="mail"),),
        ),
    ),
    ip_list=("10.0.0.1",),
    hostname="h",
    client=ClientInfo(type="nodejs", version="0.15.2", lang_version="v20"),
    metadata={"m": 1},
)


def test_info_is_read_and_written() -> None:
    assert read_info(BODY) == (INFO, ())
    assert write_info(INFO) == BODY
    assert list(write_info(INFO)) == list(BODY)
    info = read_info({**BODY, "port": 4000.0}).info
    assert info.port == 4000
    assert write_info(info)["port"] == 4000
    assert read_info({"services": []}) == (NodeInfo(instance_id=""), ())
    entry = {"name": "a", "actions": [{"name": "a.run"}], "events": [{"name": "x"}]}
    (service,) = read_info({"services": [entry]}).info.services
    assert service.actions == (ActionInfo(name="a.run"),)
    assert service.events == (EventInfo(name="x"),)
    body = {"services": [], "ipList": [1, "a", ""], "hostname": 3, "client": "c", "port": 70_000}
    info = read_info({**body, "config": [], "metadata": None}).info
    assert info == NodeInfo(instance_id="", ip_list=("a",))
    for said, seq in ((None, 1), (0, 1), (2.0, 2), (7, 7)):
        assert read_info({"services": [], "seq": said}).info.seq == seq, (said, seq)


@each(
    {},
    {"services": {}},
    {"services": "x"},
    {"services": [], "seq": "3"},
    {"services": [], "seq": True},
    {"services": [], "seq": -1},
    {"services": [], "seq": float("nan")},
    {"services": [], "seq": 2**60},
    {"services": [], "instanceID": 7},
    {"services": [], "instanceID": "x" * 300},
)
def test_what_makes_no_sense_as_a_whole_is_malformed(body: dict[str, Any]) -> None:
    with pytest.raises(MalformedPayloadError):
        read_info(body)


@each(
    ({"name": "a"}, "a"),
    ({"name": "a", "version": 1.0}, "v1.a"),
    ({"name": "a", "version": "x"}, "x.a"),
    ({"name": "a", "version": ""}, "a"),
    ({"name": "a", "version": []}, "a"),
    ({"name": "a", "version": 3, "settings": {"$noVersionPrefix": True}}, "a"),
    ({"name": "a", "version": 3, "fullName": "told"}, "told"),
)
def test_full_name_that_is_not_told_is_made(entry: dict[str, Any], full_name: str) -> None:
    (service,) = read_info({"services": [entry]}).info.services
    assert service.full_name == full_name


def test_bad_entries_are_left_out_and_told() -> None:
    entries = [
        "nonsense",
        {"version": 1},
        {"name": "a", "fullName": 7},
        {
            "name": "good",
            "settings": [],
            "actions": {"x": {"rawName": "x"}, "y": {"name": "good.y", "rawName": 1}, "z": 3},
            "events": [{"name": "e", "group": 5}, {"name": "f"}, {"name": "f"}, {"name": ["f"]}],
        },
        {"name": "good"},
        {"name": "odd", "actions": 3},
    ]
    info, problems = read_info({"services": entries})
    assert info.services == (
        ServiceInfo(
            name="good",
            full_name="good",
            actions=(ActionInfo(name="good.y"),),
            events=(EventInfo(name="f"),),
        ),
        ServiceInfo(name="odd", full_name="odd"),
    )
    assert problems == (
        "service 0: not an object",
        "service 1: a name must be a text, not NoneType",
        "service 2: a name must be a text, not int",
        "actions of good: entry 0: a name must be a text, not NoneType",
        "actions of good: entry 2: a name must be a text, not NoneType",
        "events of good: e: group: a name must be a text, not int",
        "events of good: entry 2: 'f' is there twice",
        "events of good: entry 3: a name must be a text, not list",
        "service 4: 'good' is there twice",
        "actions of odd: neither an object nor a list",
    )


def test_too_much_is_cut() -> None:
    many = [{"name": f"s{number}"} for number in range(SERVICES_MAX + 5)]
    info, problems = read_info({"services": many})
    assert len(info.services) == SERVICES_MAX
    assert problems == ("more than 1000 services; the rest is left out",)
    actions = [{"name": f"a{number}"} for number in range(ENTRIES_MAX + 5)]
    (service,) = read_info({"services": [{"name": "x", "actions": actions}]}).info.services
    assert len(service.actions) == ENTRIES_MAX
    assert len(read_info({"services": [1] * 500}).problems) == PROBLEMS_MAX
