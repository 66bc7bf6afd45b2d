"""The table of operations: what every one of them promises to HTTP, CLI, shell and dashboard."""

import inspect
import re
from typing import Any

import msgspec
import pytest

from postroad.admin.errors import InvalidRequest
from postroad.admin.operations import OPERATIONS, Effect, Operation
from postroad.admin.operations.table import Operations, operation
from postroad.core.errors import UsageError
from tests.support.cases import each

ALL = [*OPERATIONS.values()]

NOUNS = {
    *("bridge", "cells", "cluster", "dlq", "flow", "node", "job"),
    *("queue", "search", "service", "trace"),
}
ACTS = {"pause", "resume", "purge", "move", "post", "retry", "drop", "kill", "stop", "submit"}


def test_operations_are_complete_and_their_schemas_have_one_set_of_names() -> None:
    assert {it.noun for it in ALL} == NOUNS
    assert len(ALL) >= 75
    types = [type for it in ALL for type in (it.params, it.result)]
    schemas, components = msgspec.json.schema_components(types)
    assert len(schemas) == len(types)
    assert {"QueueView", "FlowView", "OverviewView", "QueueMoveParams"} <= components.keys()


@each(*ALL)
def test_operation_is_named_described_and_typed(it: Operation) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z]+(-[a-z]+)*", it.name)
    assert it.summary.endswith((".", ":")), it.summary
    assert len(it.summary) < 100
    assert it.summary[0].isupper()
    schemas, _ = msgspec.json.schema_components([it.params, it.result])
    assert len(schemas) == 2
    inner = it.result.__args__[0] if hasattr(it.result, "__args__") else it.result
    assert issubclass(inner, msgspec.Struct)
    assert inner.__doc__
    for parameter in it.parameters:
        if not parameter.is_required:
            default = parameter.default
            assert msgspec.convert(msgspec.to_builtins(default), parameter.type) == default
    assert inspect.iscoroutinefunction(it.run)
    assert next(iter(inspect.signature(it.run).parameters)) in ("office", "domain")


@each(*ALL)
def test_dangerous_operation_says_what_it_touches_and_a_read_does_nothing(it: Operation) -> None:
    assert not (it.is_read and it.verb in ACTS)
    if it.scope is not None:
        scope = OPERATIONS[it.scope]
        assert scope.is_read
        own = {parameter.name: parameter.type for parameter in it.parameters}
        for parameter in scope.parameters:
            assert own[parameter.name] == parameter.type
    elif it.name not in {"cells.kill", "flow.unschedule"}:
        assert it.effect is not Effect.DANGER


def test_names_are_unique_and_the_nearest_is_told() -> None:
    peek = OPERATIONS["queue.peek"]
    params: Any = peek.read_params({"queue": "orders", "limit": 5})
    assert (params.queue, params.limit, params.id) == ("orders", 5, None)
    texts: Any = peek.read_params({"queue": "orders", "limit": "5"}, strict=False)
    assert texts.limit == 5
    with pytest.raises(InvalidRequest, match=r"did you mean 'queue\.pause'"):
        OPERATIONS.find("queue.puase")
    assert OPERATIONS.find("queue.pause") is OPERATIONS["queue.pause"]
    with pytest.raises(UsageError, match=r"two operations 'queue\.ls'"):
        operation("queue.ls")(OPERATIONS["queue.ls"].run)
    table = Operations()
    table.add(OPERATIONS["queue.ls"])
    assert [*table] == ["queue.ls"]


@each(
    ("queue.peek", {"queue": "orders", "limitt": 5}, "did you mean 'limit'"),
    ("queue.peek", {"queue": "orders", "zebra": 5}, "it has queue, limit, id"),
    ("queue.ls", {"zebra": 5}, "it has none"),
    ("queue.peek", {}, "`queue` is missing"),
    ("queue.peek", {"queue": "orders", "limit": "5"}, "Expected `int`, got `str`"),
    ("queue.peek", {"queue": "orders", "limit": 0}, "Expected `int` >= 1"),
    ("queue.peek", {"queue": "orders", "limit": 10**6}, "Expected `int` <= 1000"),
    ("flow.ls", {"status": "tired"}, "Invalid enum value 'tired'"),
    ("node.drain", {"timeout_s": -1}, "Expected `float` > 0"),
)
def test_what_does_not_fit_is_told(name: str, said: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        OPERATIONS[name].read_params(said)
    assert name in str(caught.value)
    assert told in str(caught.value)
