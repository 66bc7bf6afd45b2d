"""Events between our node and one of the original system, both ways."""

from __future__ import annotations

from typing import Any

from tests.interop.services.pairs import OURS, THEIRS, Pair, Wiring, over

pytestmark = over(Wiring("NATS", "MsgPack"))

# Which handlers of the service `js`, or `py`, an event of that name is for.
WANTED = {
    "exact": {"exact", "star", "stars"},
    "other": {"star", "stars"},
    "a.b": {"stars"},
    "a.x": {"stars", "mark"},
    "ab.x": {"stars"},
}


async def heard_there(pair: Pair) -> list[Any]:
    """All that the other node heard so far; what comes last tells that there is no more."""
    await pair.broker.broadcast("js.exact", "last", groups=["js"])
    return await until_last(pair.js.heard)


async def heard_here(pair: Pair) -> list[Any]:
    await pair.js.ask("broadcast", event="py.exact", data="last", options={"groups": ["py"]})
    return await until_last(pair.hear)


async def until_last(hear: Any) -> list[Any]:
    heard: list[Any] = []
    while not heard or heard[-1]["data"] != "last":
        heard += await hear(1)
    return heard[:-1]


def handlers(heard: list[Any]) -> list[str]:
    return sorted(it["handler"] for it in heard)


async def test_an_event_comes_to_the_handlers_whose_pattern_matches(pair: Pair) -> None:
    for name, wanted in WANTED.items():
        await pair.broker.emit(f"js.{name}", {"n": 1})
        await pair.js.ask("emit", event=f"py.{name}", data={"n": 1})

        assert handlers(await heard_there(pair)) == sorted(wanted), name
        assert handlers(await heard_here(pair)) == sorted(wanted), name


async def test_any_data_comes_as_it_was(pair: Pair) -> None:
    cases: list[Any] = [None, {}, [1, None], "text", 0, False]
    for data in cases:
        await pair.broker.emit("js.other", data)
        await pair.js.ask("emit", event="py.other", data=data)

        assert [it["data"] for it in await heard_there(pair)] == [data, data]
        assert [it["data"] for it in await heard_here(pair)] == [data, data]


async def test_what_a_handler_is_told(pair: Pair) -> None:
    meta, headers = {"user": "eve"}, {"trace": "abc"}
    await pair.broker.emit("js.a.b", {"n": 1}, meta=meta, headers=headers)
    await pair.js.ask(
        "emit", event="py.a.b", data={"n": 1}, options={"meta": meta, "headers": headers}
    )
    (theirs,) = await heard_there(pair)
    (ours,) = await heard_here(pair)

    assert theirs.pop("requestID")
    assert ours.pop("requestID")
    expected = {"handler": "stars", "data": {"n": 1}, "type": "emit", "meta": meta, "level": 1}
    expected |= {"headers": headers, "caller": None}
    assert theirs == {**expected, "event": "js.a.b", "nodeID": OURS, "groups": ["js-all"]}
    assert ours == {**expected, "event": "py.a.b", "nodeID": THEIRS, "groups": ["py-all"]}

    # They are part of it: the same request, one level deeper, with the meta of the call.
    meta = {"user": "eve"}
    await pair.js.call("py.announce", {"event": "js.a.b", "data": 1}, meta=meta)
    await pair.broker.call("js.announce", {"event": "py.a.b", "data": 1}, meta=meta)
    (theirs,) = await heard_there(pair)
    (ours,) = await heard_here(pair)

    for heard, caller, node_id in ((theirs, "py", OURS), (ours, "js", THEIRS)):
        assert (heard["level"], heard["caller"], heard["nodeID"]) == (2, caller, node_id)
        assert (heard["meta"], heard["headers"]) == (meta, {"trail": caller})


async def test_groups_hear_of_an_event_once(pair: Pair) -> None:
    await pair.broker.emit("js.exact", 1, groups=["js-stars", "unknown"])
    await pair.js.ask("emit", event="py.exact", data=1, options={"groups": ["py-stars", "none"]})

    assert handlers(await heard_there(pair)) == ["star"]
    assert handlers(await heard_here(pair)) == ["star"]

    # Handlers of one group are at both nodes; each node prefers its own.
    await pair.broker.emit("split.now", "from here")
    await pair.js.ask("emit", event="split.now", data="from there")

    assert [it["data"] for it in await heard_there(pair)] == ["from there"]
    assert [it["data"] for it in await heard_here(pair)] == ["from here"]

    # The same pattern in services of two names: both hear of it.
    await pair.broker.emit("both.now", "from here")
    await pair.js.ask("emit", event="both.now", data="from there")
    expected = ["from here", "from there"]

    assert sorted(it["data"] for it in await heard_there(pair)) == expected
    assert sorted(it["data"] for it in await heard_here(pair)) == expected


async def test_broadcasts_come_to_all_or_to_some_groups(pair: Pair) -> None:
    await pair.broker.broadcast("split.all", "from here")
    await pair.js.ask("broadcast", event="split.all", data="from there")
    theirs, ours = await heard_there(pair), await heard_here(pair)

    for heard, sent in ((theirs, "from here"), (ours, "from there")):
        assert sorted(it["data"] for it in heard) == ["from here", "from there"]
        assert [it["type"] for it in heard if it["data"] == sent] == ["broadcast"]

    await pair.broker.broadcast("js.exact", 1, groups=["js-all"])
    await pair.js.ask("broadcast", event="py.exact", data=1, options={"groups": ["py-all"]})

    assert handlers(await heard_there(pair)) == ["stars"]
    assert handlers(await heard_here(pair)) == ["stars"]

    await pair.broker.broadcast_local("split.home", "here")
    await pair.js.ask("broadcastLocal", event="split.home", data="there")

    assert [it["data"] for it in await heard_there(pair)] == ["there"]
    assert [it["data"] for it in await heard_here(pair)] == ["here"]


async def test_many(pair: Pair) -> None:
    for number in range(300):
        await pair.broker.emit("js.a.b", number)
        await pair.js.ask("emit", event="py.a.b", data=number)

    assert [it["data"] for it in await heard_there(pair)] == [*range(300)]
    assert [it["data"] for it in await heard_here(pair)] == [*range(300)]
