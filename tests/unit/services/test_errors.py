"""The errors of services: what they say, and what is left of them on another node."""

import copy
import pickle
import re
from itertools import product
from typing import Any

from postroad.core.errors import ConfigError, ConnectError, MessagingError, Outcome, PostroadError
from postroad.services import errors
from postroad.services.error_form import (
    MESSAGE_LENGTH_MAX,
    STACK_LENGTH_MAX,
    error_from_wire,
    error_to_wire,
)
from postroad.services.errors import (
    GracefulStopTimeoutError,
    MoleculerClientError,
    MoleculerError,
    RemoteError,
    RequestTimeoutError,
    ServiceNotFoundError,
    ValidationError,
    VersionRefused,
)
from tests.support.cases import each

CLASSES: list[type[PostroadError]] = [
    it
    for it in vars(errors).values()
    if isinstance(it, type) and issubclass(it, PostroadError) and it.__module__ == errors.__name__
]
MOLECULERS = [it for it in CLASSES if issubclass(it, MoleculerError)]
KNOWN = [it for it in MOLECULERS if it is not RemoteError]
PLACE = {"action": "math.add", "nodeID": "node-2"}


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def drawn_tree() -> dict[str, str]:
    """Read the drawing in the module's docstring: class name -> name of its parent."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        drawn = re.match(r"    ([│├└─ ]*)([A-Z]\w+)", line)
        if drawn:
            depth = len(drawn[1]) // 4
            path = [*path[:depth], drawn[2]]
            if depth:
                parents[drawn[2]] = path[depth - 1]
    return parents


def test_docstring_draws_the_tree_of_errors() -> None:
    actual = {}
    for error in CLASSES:
        (parent,) = (base for base in error.__bases__ if issubclass(base, PostroadError))
        actual[error.__name__] = parent.__name__
    assert {name: parent for name, parent in drawn_tree().items() if name in actual} == actual
    codes = [vars(error).get("code") for error in CLASSES]
    assert None not in codes
    assert len(set(codes)) == len(codes)
    assert all(8000 <= error.code < 9000 for error in CLASSES)
    drawn = re.findall(r"([A-Z]\w+) +(\d{3}) ([A-Z_]+)", errors.__doc__ or "")
    assert len(drawn) == 15
    for name, status, type_ in drawn:
        error = getattr(errors, name)
        assert (error.status, error.type) == (int(status), type_)


@each(*MOLECULERS)
def test_errors_need_no_arguments_and_are_copied_whole(error: type[MoleculerError]) -> None:
    raised = error()
    assert raised.name == error.__name__
    assert isinstance(str(raised), str)
    assert isinstance(raised, MessagingError)
    raised = error("It broke", 555, "BROKEN", {"part": 7}, node_id="n", retryable=True, stack="s")
    for again in (copy.copy(raised), pickle.loads(pickle.dumps(raised))):
        assert type(again) is error
        assert vars(again) == vars(raised)
        assert str(again) == str(raised)


@each(*KNOWN)
def test_errors_come_through(error: type[MoleculerError]) -> None:
    raised = error("It broke", 555, "BROKEN", {"part": 7, **PLACE}, retryable=True)
    wire = error_to_wire(raised, node_id="node-1", action="math.add", stack="there")
    again = error_from_wire(wire, sender="node-9")
    assert type(again) is error
    assert (again.name, again.detail) == (error.__name__, "It broke")
    assert (again.status, again.type, again.retryable) == (555, "BROKEN", True)
    assert again.data == {"part": 7, **PLACE}
    assert (again.node_id, again.stack) == ("node-1", "there")


def test_wire_form_of_an_error() -> None:
    wire = error_to_wire(MoleculerError("x", 500, "T", {}), node_id="n", stack="s")
    assert list(wire) == ["name", "message", "nodeID", "code", "type", "retryable", "stack", "data"]
    assert error_to_wire(MoleculerError("x"), node_id="n") == {
        "name": "MoleculerError",
        "message": "x",
        "nodeID": "n",
        "code": 500,
        "retryable": False,
    }
    wire = error_to_wire(MoleculerError("x" * 100_000), node_id="n", stack="y" * 100_000)
    assert (len(wire["message"]), len(wire["stack"])) == (MESSAGE_LENGTH_MAX, STACK_LENGTH_MAX)
    assert "data" not in error_to_wire(MoleculerError(data=object()), node_id="n", has_data=False)
    wire = error_to_wire(RequestTimeoutError(data={"x": object()}), node_id="n", has_data=False)
    assert wire["data"] == {"action": None, "nodeID": "n"}
    error = MoleculerError("x")
    error.name = "RequestTimeoutError"
    assert error_to_wire(error, node_id="n")["data"] == {"action": None, "nodeID": "n"}
    needy = [it for it in KNOWN if it.needs_data]
    for kind, data in product(needy, [None, "text", [1], {"size": 7}]):
        wire = error_to_wire(kind("x", data=data), node_id="node-1", action="math.add")
        told = data if isinstance(data, dict) else {}
        assert wire["data"] == {"action": "math.add", "nodeID": "node-1", **told}, (kind, data)
    again = pickle.loads(pickle.dumps(VersionRefused("4", "node-1")))
    assert (again.version, again.sender) == ("4", "node-1")
    assert "'4'" in str(again)


def test_error_is_kept_over_hops() -> None:
    first = error_to_wire(MoleculerError("x"), node_id="first", stack="first stack")
    second = error_to_wire(
        error_from_wire(first, sender="first"), node_id="second", stack="second stack"
    )
    assert second == first
    wire = {
        "name": "PaymentError",
        "message": "no money",
        "nodeID": "bank",
        "code": "E_MONEY",
        "type": "POOR",
        "retryable": True,
        "data": [1, 2],
    }
    error = error_from_wire(wire, sender="other")
    assert type(error) is RemoteError
    assert (error.name, error.status, error.retryable) == ("PaymentError", "E_MONEY", True)
    assert error_to_wire(error, node_id="here") == wire
    assert error_from_wire({"name": "TypeError", "message": "x"}, sender="n").status is None
    status = error_from_wire({"name": "MoleculerError", "code": 404.0}, sender="n").status
    assert status == 404
    assert type(status) is int


@each(
    (ServiceNotFoundError(data=PLACE), "Service 'math.add' is not found on 'node-2' node."),
    (ServiceNotFoundError(data={"action": "a"}), "Service 'a' is not found."),
    (ServiceNotFoundError(data={"service": "s"}), "Service 's' not found."),
    (ServiceNotFoundError(data={"service": "s", "version": "v2"}), "Service 'v2.s' not found."),
    (
        RequestTimeoutError(data=PLACE),
        "Request is timed out when call 'math.add' action on 'node-2' node.",
    ),
    (
        RequestTimeoutError(),
        "Request is timed out when call 'undefined' action on 'undefined' node.",
    ),
    (GracefulStopTimeoutError(), "Unable to stop ServiceBroker gracefully."),
    (
        GracefulStopTimeoutError(data={"service": {"name": "desk"}}),
        "Unable to stop 'desk' service gracefully.",
    ),
)
def test_texts_are_made_of_data(error: MoleculerError, text: str) -> None:
    assert str(error) == text


def test_foreign_exceptions_are_told_as_they_are() -> None:
    assert error_to_wire(KeyError("x"), node_id="n") == {
        "name": "KeyError",
        "message": "'x'",
        "nodeID": "n",
        "code": 500,
        "retryable": False,
    }
    assert error_to_wire(ConnectError("x"), node_id="n")["retryable"] is True
    foreign = type("ValidationError", (Exception,), {"__module__": "other.library"})("x")
    assert error_to_wire(foreign, node_id="n")["name"] == "other.library.ValidationError"
    assert "cannot be told" in error_to_wire(Rude(), node_id="n")["message"]
    assert error_to_wire(ValueError("\ud800"), node_id="n")["message"] == "?"
    assert error_to_wire(MoleculerError("\ud800"), node_id="n")["message"] == "?"

    class NoMoney(MoleculerClientError):
        status = 402
        type = "NO_MONEY"

    wire = error_to_wire(NoMoney("poor", data={"need": 7}), node_id="n")
    assert (wire["name"], wire["code"], wire["type"]) == ("NoMoney", 402, "NO_MONEY")


@each(
    None,
    7,
    "text",
    [],
    {},
    {"name": 7, "message": [], "code": {}, "type": 1, "retryable": "x", "stack": 0},
    {"name": "ServiceNotFoundError", "data": 7, "nodeID": {}},
    {"code": float("nan")},
    {"code": True},
)
def test_anything_is_an_error(wire: Any) -> None:
    error = error_from_wire(wire, sender="node-1")
    assert isinstance(error, MoleculerError)
    assert error.node_id == "node-1"
    assert isinstance(error.status, int | str | None)


@each(
    (ServiceNotFoundError, LookupError, Outcome.REPLIED),
    (RequestTimeoutError, TimeoutError, Outcome.UNKNOWN),
    (ValidationError, ValueError, Outcome.REPLIED),
    (errors.QueueIsFullError, PostroadError, Outcome.NOT_SENT),
)
def test_what_callers_may_do(
    error: type[MoleculerError], builtin: type[Exception], outcome: Outcome
) -> None:
    assert issubclass(error, builtin)
    assert error().outcome is outcome
    assert not issubclass(error, ConfigError)
