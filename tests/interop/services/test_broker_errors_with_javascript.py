"""Every class of errors, raised by an action of either node and caught at the other."""

from __future__ import annotations

import pytest

from postroad.services import errors
from postroad.services.errors import MoleculerError, RemoteError
from tests.interop.services.error_samples import ARGUMENTS, UNKNOWN_THERE, make_error
from tests.interop.services.javascript_node import JavascriptError
from tests.interop.services.pairs import OURS, THEIRS, Pair, Wiring, over
from tests.support.services.javascript import marked

pytestmark = over(Wiring("NATS"), Wiring("TCP", "CBOR"))

# There it tells less of the service than it was told.
TELLS_LESS = "GracefulStopTimeoutError"


async def test_every_error_raised_on_one_side_is_caught_on_the_other(pair: Pair) -> None:
    ours = {it.__name__ for it in vars(errors).values() if isinstance(it, type)}
    known = {name for name in ours if issubclass(getattr(errors, name), MoleculerError)}
    assert set(ARGUMENTS) == known - {"EventNotHandledError", "RemoteError"}  # Only here.
    for name in ARGUMENTS:
        await check_raised_there(pair, name)
        await check_raised_here(pair, name)


async def check_raised_there(pair: Pair, name: str) -> None:
    ours = make_error(name)
    with pytest.raises(getattr(errors, name)) as caught:
        await pair.broker.call("js.fail", {"name": name, "args": marked(ARGUMENTS[name])})
    error = caught.value

    assert isinstance(error, MoleculerError)
    assert (error.name, error.detail) == (name, ours.detail)
    assert (error.status, error.type) == (ours.status, ours.type)
    assert error.retryable is ours.retryable
    assert error.node_id == THEIRS
    assert error.data == ours.data or name == TELLS_LESS


async def check_raised_here(pair: Pair, name: str) -> None:
    ours = make_error(name)
    with pytest.raises(JavascriptError) as caught:
        await pair.js.call("py.fail", {"name": name})
    told = caught.value.told

    assert (told["name"], told["message"]) == (name, ours.detail)
    assert (told["code"], told.get("type")) == (ours.status, ours.type)
    assert told["retryable"] is ours.retryable
    assert told["nodeID"] == OURS
    assert told["isMoleculers"] is (name not in UNKNOWN_THERE)
    if isinstance(ours.data, dict) and name != TELLS_LESS:
        assert told["data"].items() >= ours.data.items()
    else:
        assert told.get("data") == ours.data or name == TELLS_LESS
    with pytest.raises(JavascriptError) as caught:
        await pair.js.call("py.fail", {"name": name, "is_bare": True})
    assert caught.value.told["name"] == name


async def test_foreign_errors(pair: Pair) -> None:
    with pytest.raises(RemoteError) as here:
        await pair.broker.call("js.fail", {"name": "none", "args": ["wrong type"]})
    with pytest.raises(JavascriptError) as there:
        await pair.js.call("py.fail", {"name": "none"})

    assert (here.value.name, here.value.detail) == ("TypeError", "wrong type")
    assert (there.value.told["name"], there.value.told["message"]) == ("KeyError", "'lost'")
    assert not there.value.told["isMoleculers"]


async def test_the_place_is_where_it_happened_first(pair: Pair) -> None:
    """An error goes on to the caller's caller with all that it tells."""
    args = ["It broke", 555, "BROKEN", {"part": 7}]
    fail = {"name": "MoleculerServerError", "args": args}
    with pytest.raises(errors.MoleculerServerError) as here:
        await pair.broker.call("js.relay", {"action": "py.fail", "params": fail})
    with pytest.raises(JavascriptError) as there:
        await pair.js.call("py.relay", {"action": "js.fail", "params": fail})

    assert (here.value.status, here.value.type, here.value.data) == (555, "BROKEN", {"part": 7})
    assert here.value.node_id == OURS
    assert there.value.told["nodeID"] == THEIRS
    assert there.value.told["data"] == {"part": 7}


async def test_refused_params(pair: Pair) -> None:
    """The lists of what is wrong are alike, but for the node, which is not the same."""
    params = {"count": -1.5, "name": 7}
    with pytest.raises(errors.ValidationError) as here:
        await pair.broker.call("js.checked", params)
    with pytest.raises(JavascriptError) as there:
        await pair.js.call("py.checked", params)
    ours = {**there.value.told, "data": there.value.told["data"]}

    assert here.value.detail == ours["message"] == "Parameters validation error!"
    assert ours["code"] == here.value.status == 422
    fields = ("type", "message", "field", "actual")
    theirs = [{key: it.get(key) for key in fields} for it in here.value.data]
    assert [{key: it.get(key) for key in fields} for it in ours["data"]] == theirs
    assert {it["action"] for it in ours["data"]} == {"py.checked"}
