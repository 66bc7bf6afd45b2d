"""Every class of errors, raised on either side and caught on the other."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.services import errors
from postroad.services.error_form import error_from_wire, error_to_wire
from postroad.services.errors import MoleculerError, RemoteError
from postroad.services.kinds import VERSION, Kind
from postroad.services.packets import Response
from tests.interop.services.error_samples import ARGUMENTS, UNKNOWN_THERE, make_error
from tests.interop.services.talk import THEM, US, Talk
from tests.support.services.javascript import marked

pytestmark = pytest.mark.timeout(600)

NAMES: dict[str, Any] = {"ver": VERSION, "sender": US}


def call(talk: Talk) -> tuple[str, str]:
    """Let the other node call us; returns what to ask for the result with, and the id."""
    key = talk.peer.begin("call", action="v1.desk.ask", params={})
    return key, talk.hear_one(Kind.REQUEST).id


def test_all_errors_are_tried() -> None:
    ours = {it.__name__ for it in vars(errors).values() if isinstance(it, type)}
    known = {name for name in ours if issubclass(getattr(errors, name), MoleculerError)}
    assert set(ARGUMENTS) == known - {"EventNotHandledError", "RemoteError"}  # Only here.


@pytest.mark.parametrize("name", ARGUMENTS)
def test_raised_there(talk: Talk, name: str) -> None:
    talk.tell(talk.request("v2.lab.fail", {"name": name, "args": marked(ARGUMENTS[name])}))
    response = talk.hear_one(Kind.RESPONSE)
    error = error_from_wire(response.error, sender=response.sender)
    ours = make_error(name)

    assert response.success is False
    assert type(error) is getattr(errors, name)
    assert (error.name, error.detail) == (name, ours.detail)
    assert (error.status, error.type) == (ours.status, ours.type)
    assert error.retryable is ours.retryable
    assert error.node_id == THEM
    if name != "GracefulStopTimeoutError":  # There it tells less of the service than it was told.
        assert error.data == ours.data


@pytest.mark.parametrize("name", ARGUMENTS)
def test_raised_here(talk: Talk, name: str) -> None:
    key, id = call(talk)
    ours = make_error(name)
    told = error_to_wire(ours, node_id=US, action="v1.desk.ask")
    talk.tell(Response(id=id, success=False, error=told, **NAMES))
    theirs = talk.peer.ask("result", key=key)["error"]

    assert theirs["name"] == name
    assert theirs["message"] == ours.detail
    assert theirs["code"] == ours.status
    assert theirs.get("type") == ours.type
    assert theirs["retryable"] is ours.retryable
    assert theirs["nodeID"] == US
    assert theirs["isMoleculers"] is (name not in UNKNOWN_THERE)
    if isinstance(ours.data, dict) and name != "GracefulStopTimeoutError":
        assert theirs["data"].items() >= ours.data.items()
    elif name != "GracefulStopTimeoutError":
        assert theirs.get("data") == ours.data


@pytest.mark.parametrize("name", ARGUMENTS)
def test_raised_here_without_anything(talk: Talk, name: str) -> None:
    key, id = call(talk)
    told = error_to_wire(getattr(errors, name)(), node_id=US)
    talk.tell(Response(id=id, success=False, error=told, **NAMES))

    assert talk.peer.ask("result", key=key)["error"]["name"] == name


def test_foreign_errors_raised_there(talk: Talk) -> None:
    talk.tell(talk.request("v2.lab.fail", {"name": "none", "args": ["wrong type"]}))
    response = talk.hear_one(Kind.RESPONSE)
    error = error_from_wire(response.error, sender=response.sender)

    assert type(error) is RemoteError
    assert (error.name, error.detail) == ("TypeError", "wrong type")
    assert (error.status, error.type, error.data) == (None, None, None)


def test_foreign_errors_raised_here(talk: Talk) -> None:
    key, id = call(talk)
    told = error_to_wire(KeyError("lost"), node_id=US, stack="somewhere")
    talk.tell(Response(id=id, success=False, error=told, **NAMES))
    theirs = talk.peer.ask("result", key=key)["error"]

    assert (theirs["name"], theirs["message"]) == ("KeyError", "'lost'")
    assert not theirs["isMoleculers"]


def test_unknown_actions_are_told_without_headers(talk: Talk) -> None:
    talk.tell(talk.request("v2.lab.unknown", {}))
    response = talk.hear_one(Kind.RESPONSE)
    error = error_from_wire(response.error, sender=response.sender)

    assert response.headers is None
    assert type(error) is errors.ServiceNotFoundError
    assert error.data == {"action": "v2.lab.unknown", "nodeID": THEM}
