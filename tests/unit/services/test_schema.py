"""Names and descriptions of services, as the real node makes them."""

import enum
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.services.describing import describe_service, public_settings, published
from postroad.services.js_text import js_number, js_text
from postroad.services.schema import (
    ActionInfo,
    EventInfo,
    Visibility,
    action_name_of,
    full_name_of,
)
from tests.support.cases import each


def test_names_have_the_prefixes_of_version_and_service() -> None:
    for version, full_name in (
        (None, "posts"),
        (2, "v2.posts"),
        (2.0, "v2.posts"),
        (1.5, "v1.5.posts"),
        ("b", "b.posts"),
    ):
        assert full_name_of("posts", version) == full_name, (version, full_name)
        assert full_name_of("posts", version, has_prefix=False) == "posts", (version, full_name)
    assert action_name_of("v2.posts", "find") == "v2.posts.find"
    assert action_name_of("v2.posts", "find", has_prefix=False) == "find"
    settings = {"$noVersionPrefix": True, "$noServiceNamePrefix": True}
    service = describe_service("posts", version=2, settings=settings, actions={"find": {}})
    assert (service.full_name, service.version) == ("posts", 2)
    assert service.actions == (ActionInfo(name="find", raw_name="find"),)
    actions = {name: {"visibility": name} for name in ("published", "protected", "private")}
    service = describe_service("posts", actions=actions)
    assert len(service.actions) == 3
    shown = published(service)
    assert [action.raw_name for action in shown.actions] == ["published", "protected"]
    assert [action.is_remote for action in shown.actions] == [True, False]
    action = ActionInfo(name="a", definition={"visibility": "secret"})
    assert action.visibility is None
    assert not action.is_remote


def test_whole_description() -> None:
    service = describe_service(
        "posts",
        version=2,
        metadata={"region": "eu", "callback": print},
        actions={
            "find": {"params": {"id": "number"}, "timeout": 500, "handler": print, "fallback": 1},
            "ls": {"name": "list", "visibility": Visibility.PUBLIC},
        },
        events={"user.*": {"group": "mail", "handler": print}, "x": {"name": "order.**"}},
    )
    assert service.metadata == {"region": "eu"}
    assert service.actions == (
        ActionInfo(
            name="v2.posts.find",
            raw_name="find",
            definition={"params": {"id": "number"}, "timeout": 500},
        ),
        ActionInfo(name="v2.posts.list", raw_name="list", definition={"visibility": "public"}),
    )
    assert service.events == (EventInfo(name="user.*", group="mail"), EventInfo(name="order.**"))
    assert [service.group_of(event) for event in service.events] == ["mail", "posts"]


def test_what_is_secret_or_cannot_be_sent_stays_here() -> None:
    settings = {
        "$secureSettings": ["token", "db.password", "a.b", "gone.far"],
        "token": 1,
        "db": {"password": 2, "host": "h"},
        "a.b": 3,
        "port": 4,
    }
    assert public_settings(settings) == {"db": {"host": "h"}, "port": 4}
    assert describe_service("x", settings=settings).settings == {"db": {"host": "h"}, "port": 4}
    assert settings["db"] == {"password": 2, "host": "h"}
    with pytest.raises(ConfigError, match="list of names"):
        public_settings({"$secureSettings": "token"})

    class Colour(enum.Enum):
        RED = "red"

    params = {"a": {3, 1}, "b": (1, print), "c": Colour.RED, "d": float("inf"), "e": object()}
    action = describe_service("x", actions={"run": {"params": params}}).actions[0]
    assert action.definition == {"params": {"a": [1, 3], "b": [1, None], "c": "red", "d": None}}


def endless() -> dict[str, Any]:
    params: dict[str, Any] = {}
    params["again"] = params
    return params


@each(
    ({"name": ""}, "empty"),
    ({"name": "two words"}, "space"),
    ({"name": "x" * 256}, "256 characters"),
    ({"name": "x", "version": ""}, "version"),
    ({"name": "x", "actions": {"a\nb": {}}}, "unprintable"),
    ({"name": "x" * 200, "actions": {"y" * 200: {}}}, "401 characters"),
    ({"name": "x", "actions": {"a": {}, "b": {"name": "a"}}}, "'x.a' twice"),
    ({"name": "x", "events": {"a": {}, "b": {"name": "a"}}}, "'a' twice"),
    ({"name": "x", "events": {"a": {"group": "b c"}}}, "group of event a of x"),
    ({"name": "x", "actions": {"a": {"visibility": "secret"}}}, "none of published, public"),
    ({"name": "x", "actions": {"a": {"params": endless()}}}, "contains itself"),
)
def test_mistakes_are_named(description: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        describe_service(**description)


@each(
    ({}, None),
    ({"timeout": 500}, 0.5),
    ({"timeout": 0}, 0),
    ({"timeout": -1}, None),
    ({"timeout": True}, None),
    ({"timeout": "5"}, None),
    ({"timeout": float("nan")}, None),
    ({"timeout": 2**40}, None),
)
def test_timeout_of_an_action(definition: dict[str, Any], timeout_s: float | None) -> None:
    assert ActionInfo(name="a", definition=definition).timeout_s == timeout_s


@each(
    (0, "0"),
    (-0.0, "0"),
    (-7, "-7"),
    (1.0, "1"),
    (0.1, "0.1"),
    (-12.25, "-12.25"),
    (1e-6, "0.000001"),
    (1e-7, "1e-7"),
    (1.5e-9, "1.5e-9"),
    (123456789012345680000.0, "123456789012345680000"),
    (1e21, "1e+21"),
    (10**21, "1e+21"),
    (2**53 + 1, "9007199254740992"),
    (-1.25e30, "-1.25e+30"),
    (float("nan"), "NaN"),
    (float("-inf"), "-Infinity"),
)
def test_numbers_are_written_as_in_javascript(number: float, text: str) -> None:
    assert js_number(number) == text


def test_numbers_beyond_all_floats_are_infinite() -> None:
    assert js_number(10**400) == "Infinity"
    assert js_number(-(10**400)) == "-Infinity"


@each(
    (None, ""),
    (True, "true"),
    (1.0, "1"),
    ("a", "a"),
    ([1, [None, "b"]], "1,,b"),
    ({}, "[object Object]"),
)
def test_values_are_written_as_in_javascript(value: object, text: str) -> None:
    assert js_text(value) == text
