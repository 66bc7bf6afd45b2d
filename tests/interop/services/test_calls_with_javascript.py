"""Calls between our node and one of the original system, both ways."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroad.services.errors import (
    MoleculerClientError,
    MoleculerError,
    MoleculerRetryableError,
    RequestTimeoutError,
    ServiceNotFoundError,
)
from tests.interop.services.javascript_node import JavascriptError
from tests.interop.services.pairs import OURS, THEIRS, Pair, Wiring, over

pytestmark = over(Wiring("TCP"))

VALUES: list[Any] = [
    {},
    {"a": None},
    [],
    [1, "two", [3]],
    "text",
    "",
    0,
    1.5,
    -(2**53) + 1,
    True,
    False,
]
VALUES += [{"text": "x" * 800_000}]


async def test_any_value_comes_back(pair: Pair) -> None:
    for value in VALUES:
        assert await pair.broker.call("js.echo", value) == value
        assert await pair.js.call("py.echo", value) == value, value
    assert await pair.broker.call("js.echo") == {}
    assert await pair.js.call("py.echo") == {}


async def test_many_at_once(pair: Pair) -> None:
    ours = [pair.broker.call("js.echo", {"n": n}) for n in range(200)]
    theirs = [pair.js.call("py.echo", {"n": n}) for n in range(200)]
    results = await asyncio.gather(*ours, *theirs)

    assert results == [{"n": n} for n in range(200)] * 2


# What a context is told.


async def test_context_of_a_call_from_outside_and_of_one_within(pair: Pair) -> None:
    theirs = await pair.broker.call("js.context", timeout_s=7.5)
    ours = await pair.js.call("py.context", timeout=7500)

    for seen, node_id in ((theirs, OURS), (ours, THEIRS)):
        assert seen["requestID"] == seen["id"]
        assert (seen["level"], seen["nodeID"]) == (1, node_id)
        assert seen["parentID"] is None
        assert seen["caller"] is None
        assert seen["timeout"] == 7500

    # The call goes there and from there back here, or the other way round.
    ours = await pair.broker.call("js.relay", {"action": "py.context"}, meta={"user": "eve"})
    theirs = await pair.js.call("py.relay", {"action": "js.context"}, meta={"user": "eve"})

    for told, relay, node_id in ((ours, "js", THEIRS), (theirs, "py", OURS)):
        seen = told["result"]
        assert (seen["level"], seen["caller"], seen["nodeID"]) == (2, relay, node_id)
        assert seen["parentID"] == told["id"] != seen["id"]
        assert seen["requestID"] == told["requestID"] == told["id"]
        assert seen["meta"] == {"user": "eve", "relay": relay}
        assert seen["headers"] == {}


async def test_meta_and_headers_come_back(pair: Pair) -> None:
    ctx = pair.broker.context(meta={"user": "eve"})
    await ctx.call("js.relay", {"action": "py.context"})
    _, meta = await pair.js.call_with_meta(
        "py.relay", {"action": "js.context"}, meta={"user": "eve"}
    )

    assert ctx.meta == {"user": "eve", "relay": "js", "seen": "by py"}
    assert meta == {"user": "eve", "relay": "py", "seen": "by js"}

    ctx = pair.broker.context()
    with pytest.raises(MoleculerClientError):
        await ctx.call("js.tagAndFail")
    with pytest.raises(JavascriptError) as failed:
        await pair.js.call("py.tagAndFail")

    assert ctx.meta == failed.value.meta == {"tag": "set before the failure"}

    # To middlewares of ours; those of the original system do not get at them.
    pair.replies.clear()
    await pair.broker.call("js.context")

    assert pair.replies == [{"reply": "from js"}]


# Who is called.


async def test_versions_visibility_and_nodes_say_who_is_called(pair: Pair) -> None:
    assert await pair.broker.call("v2.js.where") == "v2"
    assert await pair.broker.call("beta.js.where") == "beta"
    assert await pair.js.call("v2.py.where") == "v2"
    assert await pair.js.call("beta.py.where") == "beta"
    with pytest.raises(ServiceNotFoundError):
        await pair.broker.call("js.where")
    with pytest.raises(JavascriptError, match="ServiceNotFoundError"):
        await pair.js.call("py.where")

    assert await pair.broker.call("js.open") == await pair.js.call("py.open") == "open"
    assert await pair.broker.call("js.tell") == ["secret", "guarded"]
    assert await pair.js.call("py.tell") == ["secret", "guarded"]
    for name in ("guarded", "secret"):
        with pytest.raises(ServiceNotFoundError):
            await pair.broker.call(f"js.{name}")
        with pytest.raises(JavascriptError, match="ServiceNotFoundError"):
            await pair.js.call(f"py.{name}")

    # Each node prefers its own, and takes the other if told to.
    assert await pair.broker.call("shared.where") == OURS
    assert await pair.js.call("shared.where") == THEIRS
    assert await pair.broker.call("shared.where", node_id=THEIRS) == THEIRS
    assert await pair.js.call("shared.where", nodeID=OURS) == OURS

    with pytest.raises(ServiceNotFoundError) as here:
        await pair.broker.call("js.none", node_id=THEIRS)
    with pytest.raises(JavascriptError) as there:
        await pair.js.call("py.none", nodeID=OURS)

    assert (here.value.status, here.value.type) == (404, "SERVICE_NOT_FOUND")
    assert there.value.told["name"] == "ServiceNotFoundError"


# Several at once.


async def test_several_calls_at_once(pair: Pair) -> None:
    ours = await pair.broker.mcall([("js.echo", {"n": 1}), ("v2.js.where", None)])
    named = await pair.broker.mcall({"a": ("js.echo", {"n": 2}), "b": ("beta.js.where", None)})
    calls = [{"action": "py.echo", "params": {"n": 1}}, {"action": "v2.py.where"}]
    theirs = await pair.js.ask("mcall", calls=calls)
    by_name = {"a": {"action": "py.echo", "params": {"n": 2}}, "b": {"action": "beta.py.where"}}

    assert ours == theirs == [{"n": 1}, "v2"]
    assert named == await pair.js.ask("mcall", calls=by_name) == {"a": {"n": 2}, "b": "beta"}

    ours = await pair.broker.mcall([("js.tagAndFail", None), ("js.echo", {"n": 1})], settled=True)
    with pytest.raises(MoleculerClientError):
        await pair.broker.mcall([("js.echo", {}), ("js.tagAndFail", None)])
    calls = [{"action": "py.tagAndFail"}, {"action": "py.echo", "params": {"n": 1}}]
    theirs = await pair.js.ask("mcall", calls=calls, options={"settled": True})

    assert isinstance(ours[0], MoleculerClientError)
    assert ours[1] == {"n": 1}
    assert theirs[0]["error"]["code"] == 409
    assert theirs[1] == {"status": "fulfilled", "value": {"n": 1}}


# Time.


async def test_time_is_over_by_the_caller_or_by_the_action(pair: Pair) -> None:
    with pytest.raises(RequestTimeoutError) as here:
        await pair.broker.call("js.slow", {"ms": 5_000}, timeout_s=0.1)
    with pytest.raises(JavascriptError) as there:
        await pair.js.call("py.slow", {"ms": 5_000}, timeout=100)

    # The other node may be the first to see that the time is over.
    assert here.value.data["action"] == "js.slow"
    assert here.value.status == 504
    assert there.value.told["name"] == "RequestTimeoutError"
    assert there.value.told["code"] == 504

    # Whoever calls it has read of it in what the other node tells of itself.
    with pytest.raises(RequestTimeoutError):
        await pair.broker.call("js.hurried", {"ms": 5_000})
    with pytest.raises(JavascriptError, match="RequestTimeoutError"):
        await pair.js.call("py.hurried", {"ms": 5_000})


async def test_calls_within_a_call_have_the_rest_of_its_time(pair: Pair) -> None:
    ours = await pair.broker.call("js.relay", {"action": "py.context"}, timeout_s=5.0)
    theirs = await pair.js.call("py.relay", {"action": "js.context"}, timeout=5_000)

    for told in (ours, theirs):
        assert 0 < told["result"]["timeout"] <= 5_000


# What else is read of an action.


async def test_retries_and_fallback(pair: Pair) -> None:
    assert await pair.broker.call("js.retried") % 3 == 0
    assert await pair.js.call("py.retried") % 3 == 0

    with pytest.raises(MoleculerRetryableError):
        await pair.broker.call("js.retried", retries=0)
    with pytest.raises(JavascriptError, match="not yet"):
        await pair.js.call("py.retried", retries=0)

    assert await pair.broker.call("js.tagAndFail", fallback="instead") == "instead"
    assert await pair.js.call("py.tagAndFail", fallbackResponse="instead") == "instead"


async def test_params_are_checked_by_type_hints(pair: Pair) -> None:
    assert await pair.js.call("py.typed", {"count": 1}) == {"count": 1, "name": ""}
    with pytest.raises(JavascriptError) as failed:
        await pair.js.call("py.typed", {"count": "one"})

    assert failed.value.told["name"] == "ValidationError"
    assert failed.value.told["code"] == 422
    assert failed.value.told["data"][0]["field"] == "count"


async def test_what_cannot_be_sent_is_an_error(pair: Pair) -> None:
    with pytest.raises(JavascriptError):
        await pair.js.call("py.unsendable")
    with pytest.raises(MoleculerError):
        await pair.broker.call("js.relay", {"action": "py.unsendable"})


# The service that every node has.


async def test_what_nodes_tell_of_themselves(pair: Pair) -> None:
    theirs = await pair.broker.call("$node.list", node_id=THEIRS)
    ours = await pair.js.call("$node.list", nodeID=OURS)
    services = await pair.broker.call("$node.services", {"onlyLocal": True}, node_id=THEIRS)
    our_services = await pair.js.call("$node.services", {"onlyLocal": True}, nodeID=OURS)
    health = await pair.js.call("$node.health", nodeID=OURS)

    assert {it["id"] for it in theirs} == {it["id"] for it in ours} == {OURS, THEIRS}
    assert {"js", "v2.js", "beta.js", "shared"} <= {it["fullName"] for it in services}
    assert {"py", "v2.py", "beta.py", "shared"} <= {it["fullName"] for it in our_services}
    assert health["client"]["type"] == "postroad"

    # A tool that lists the actions of a cluster reads both.
    theirs = await pair.broker.call("$node.actions", {"onlyLocal": True}, node_id=THEIRS)
    ours = await pair.js.call("$node.actions", {"onlyLocal": True}, nodeID=OURS)
    js = next(it for it in theirs if it["name"] == "js.checked")
    py = next(it for it in ours if it["name"] == "py.checked")

    assert js.keys() <= py.keys() | {"count"}
    assert py["action"]["params"] == js["action"]["params"]
    assert py["action"]["rawName"] == js["action"]["rawName"] == "checked"
