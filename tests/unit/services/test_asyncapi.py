"""AsyncAPI documents of services."""

import re
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Annotated, Any

import msgspec
import pytest

from postroad.core.errors import ConfigError
from postroad.services.asyncapi import asyncapi_document
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.node_service import NodeService
from postroad.services.service import Service, action, event

ID = re.compile(r"[A-Za-z0-9_.-]+")


class Post(msgspec.Struct):
    """A text by somebody."""

    id: int
    title: Annotated[str, msgspec.Meta(max_length=10)]
    written: datetime | None = None
    replies: "list[Post]" = []


class Strange:
    """No type that JSON knows."""


class Posts(Service):
    name = "posts"
    version = 2

    @action(cache=["id"], timeout_s=2)
    async def find(self, ctx: Context, id: int, limit: int = 10) -> list[Post]:
        """Find posts.

        As many as there are.
        """
        return []

    @action(params={"id": "number|integer|positive", "tags": "string[]|optional"})
    def old(self, ctx: Context) -> dict[str, int]:
        return {}

    @action(description="Put one in.")
    def add(self, ctx: Context, params: Post) -> None:
        return

    @action
    async def read(self, ctx: Context) -> AsyncIterator[bytes]:
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield b""

    @action
    def odd(self, ctx: Context, one: Post) -> Strange:
        return Strange()

    @action(visibility="protected")
    def near(self, ctx: Context) -> None:
        return

    @action(visibility="private")
    def hidden(self, ctx: Context) -> None:
        return

    @event("user.*", group="readers")
    def on_user(self, ctx: Context, id: int) -> None:
        """A user did something."""

    @event("user.?", params={"id": "string"})
    def on_some_user(self, ctx: Context) -> None:
        return

    @event("**")
    def on_all(self, ctx: Context) -> None:
        return


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    made = asyncapi_document([Posts()], title="Blog", version="3.1", description="All of it.")
    # As others will get it.
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
    return read


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = [*value.values()]
    if isinstance(value, list):
        for item in value:
            yield from references(item)


def at(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for part in reference[2:].split("/"):
        document = document[part]
    return document


def payload(document: Any, channel: str, message: str) -> Any:
    found = document["channels"][channel]["messages"][message]["payload"]
    return at(document, found["$ref"]) if "$ref" in found else found


def test_document_is_valid_asyncapi(document: Any) -> None:
    assert document["asyncapi"] == "3.0.0"
    assert document["info"] == {"title": "Blog", "version": "3.1", "description": "All of it."}
    assert {*document} <= {
        *("asyncapi", "info", "defaultContentType", "channels", "operations", "components")
    }
    found = [*references(document)]
    assert len(found) > 20
    for reference in found:
        at(document, reference)
    for operation in document["operations"].values():
        assert operation["action"] == "receive"
        assert {"action", "channel", "messages"} <= {*operation}
        for user in [operation, *([operation["reply"]] if "reply" in operation else [])]:
            (message,) = user["messages"]
            assert message["$ref"].startswith(user["channel"]["$ref"] + "/messages/")
    ids = [*document["channels"], *document["operations"], *document["components"]["schemas"]]
    assert [it for it in ids if not ID.fullmatch(it)] == []
    for channel in document["channels"].values():
        assert {*channel} == {"address", "messages"}
        for message in channel["messages"].values():
            assert {*message} == {"name", "title", "payload"}


def test_action(document: Any) -> None:
    operation = document["operations"]["v2.posts.find"]
    assert operation["summary"] == "Find posts."
    assert operation["description"] == "As many as there are."
    assert operation["tags"] == [{"name": "v2.posts"}]
    assert operation["x-timeout-ms"] == 2000
    assert operation["x-cache"] == {"keys": ["id"]}
    assert document["channels"]["v2.posts.find"]["address"] == "v2.posts.find"
    assert document["channels"]["v2.posts.find.reply"]["address"] is None
    params = payload(document, "v2.posts.find", "request")
    assert params["properties"] == {
        "id": {"type": "integer"},
        "limit": {"type": "integer", "default": 10},
    }
    assert params["required"] == ["id"]
    result = payload(document, "v2.posts.find.reply", "reply")
    assert result == {"type": "array", "items": {"$ref": "#/components/schemas/Post"}}
    assert document["components"]["schemas"]["Post"]["description"] == "A text by somebody."


def test_params_of_every_sort_are_described(document: Any) -> None:
    assert payload(document, "v2.posts.old", "request") == {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "exclusiveMinimum": 0},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        },
        "required": ["id"],
    }
    assert payload(document, "v2.posts.add", "request")["title"] == "Post"
    assert document["operations"]["v2.posts.add"]["summary"] == "Put one in."
    assert payload(document, "v2.posts.add.reply", "reply") == {"type": "null"}
    assert payload(document, "v2.posts.read", "request") == {}
    assert payload(document, "v2.posts.read.reply", "reply") == {}
    assert payload(document, "v2.posts.odd.reply", "reply") == {}
    names = {it.rpartition(".")[2] for it in document["operations"]}
    assert {"near", "hidden"} & names == set()


def test_events(document: Any) -> None:
    by_address = {
        it["address"]: (id, it) for id, it in document["channels"].items() if "_on_" in id
    }
    assert [*by_address] == ["user.*", "user.?", "**"]
    operations = [document["operations"][id] for id, _ in by_address.values()]
    assert [it["x-group"] for it in operations] == ["readers", "posts", "posts"]
    assert operations[0]["summary"] == "A user did something."
    first, second = (payload(document, by_address[it][0], "event") for it in ("user.*", "user.?"))
    assert first["properties"] == {"id": {"type": "integer"}}
    assert second["properties"] == {"id": {"type": "string"}}


def test_names_that_look_alike_stay_apart() -> None:
    class Alike(Service):
        name = "a"

        @action(name="b.reply")
        def one(self, ctx: Context, x: int) -> int:
            return 1

        @action(name="b")
        def two(self, ctx: Context, y: int) -> int:
            return 1

        @action(name="b_reply")
        def three(self, ctx: Context, z: int) -> int:
            return 1

        @event("x.*")
        def four(self, ctx: Context, v: int) -> None:
            return

        @event("x.$")
        def five(self, ctx: Context, w: int) -> None:
            return

    document = asyncapi_document([Alike()])
    addresses = [it["address"] for it in document["channels"].values()]
    assert sorted(it for it in addresses if it) == ["a.b", "a.b.reply", "a.b_reply", "x.$", "x.*"]
    assert addresses.count(None) == 3
    fields = [
        [*payload(document, id, name)["properties"]]
        for id, channel in document["channels"].items()
        for name in channel["messages"]
        if name != "reply"
    ]
    assert sorted(fields) == [["v"], ["w"], ["x"], ["y"], ["z"]]


def test_services_may_be_of_a_broker_of_a_node_or_none() -> None:
    broker = Broker("a")
    posts = Posts()
    broker.add(posts)
    assert "v2.posts.find" in asyncapi_document(broker.services())["operations"]
    assert "_node.list" in asyncapi_document([NodeService()])["operations"]
    document = asyncapi_document([])
    assert (document["channels"], document["operations"]) == ({}, {})
    assert "components" not in document


def test_services_that_make_no_sense() -> None:
    class Wrong(Service):
        name = "wrong"

        @action(params={"a": "no such type"})
        def act(self, ctx: Context) -> None:
            return

    with pytest.raises(ConfigError, match="no such type"):
        asyncapi_document([Wrong()])
