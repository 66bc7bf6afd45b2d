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

ALL = [*OPERATIONS.values()]
each = pytest.mark.parametrize("it", ALL, ids=lambda it: it.name)

NOUNS = {
    *("bridge", "cells", "cluster", "dlq", "flow", "node", "pipeline"),
    *("queue", "search", "service", "trace"),
}


def test_there_are_all_nouns() -> None:
    assert {it.noun for it in ALL} == NOUNS
    assert len(ALL) >= 75


@each
def test_names_are_a_noun_and_a_verb(it: Operation) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z]+(-[a-z]+)*", it.name)


@each
def test_each_says_what_it_does_in_one_sentence(it: Operation) -> None:
    assert it.summary.endswith((".", ":")), it.summary
    assert len(it.summary) < 100
    assert it.summary[0].isupper()


@each
def test_parameters_and_results_have_a_json_schema(it: Operation) -> None:
    schemas, _ = msgspec.json.schema_components([it.params, it.result])
    assert len(schemas) == 2


def test_all_together_have_one_set_of_names() -> None:
    types = [type for it in ALL for type in (it.params, it.result)]
    schemas, components = msgspec.json.schema_components(types)
    assert len(schemas) == len(types)
    assert {"QueueView", "FlowView", "OverviewView", "QueueMoveParams"} <= components.keys()


@each
def test_results_are_structs_or_lists_of_them(it: Operation) -> None:
    inner = it.result.__args__[0] if hasattr(it.result, "__args__") else it.result
    assert issubclass(inner, msgspec.Struct)
    assert inner.__doc__


@each
def test_the_scope_of_an_operation_reads_what_it_is_told(it: Operation) -> None:
    if it.scope is None:
        return
    scope = OPERATIONS[it.scope]
    assert scope.is_read
    own = {parameter.name: parameter.type for parameter in it.parameters}
    for parameter in scope.parameters:
        assert own[parameter.name] == parameter.type


@each
def test_dangerous_ones_say_what_they_touch(it: Operation) -> None:
    exempt = {"cells.kill", "flow.unschedule"}
    if it.effect is Effect.DANGER and it.name not in exempt:
        assert it.scope is not None


@each
def test_those_that_only_look_are_called_so(it: Operation) -> None:
    acts = {"pause", "resume", "purge", "move", "post", "retry", "drop", "kill", "stop", "submit"}
    assert not (it.is_read and it.verb in acts)


@each
def test_defaults_fit_their_types(it: Operation) -> None:
    given = {p.name: p.default for p in it.parameters if not p.is_required}
    hints = {p.name: p.type for p in it.parameters}
    for name, default in given.items():
        assert msgspec.convert(msgspec.to_builtins(default), hints[name]) == default


# Reading what operators say.


def test_what_is_said_is_checked() -> None:
    peek = OPERATIONS["queue.peek"]
    params: Any = peek.read_params({"queue": "orders", "limit": 5})
    assert (params.queue, params.limit, params.id) == ("orders", 5, None)
    texts: Any = peek.read_params({"queue": "orders", "limit": "5"}, strict=False)
    assert texts.limit == 5


@pytest.mark.parametrize(
    ("name", "said", "told"),
    [
        ("queue.peek", {"queue": "orders", "limitt": 5}, "did you mean 'limit'"),
        ("queue.peek", {"queue": "orders", "zebra": 5}, "it has queue, limit, id"),
        ("queue.ls", {"zebra": 5}, "it has none"),
        ("queue.peek", {}, "`queue` is missing"),
        ("queue.peek", {"queue": "orders", "limit": "5"}, "Expected `int`, got `str`"),
        ("queue.peek", {"queue": "orders", "limit": 0}, "Expected `int` >= 1"),
        ("queue.peek", {"queue": "orders", "limit": 10**6}, "Expected `int` <= 1000"),
        ("flow.ls", {"status": "tired"}, "Invalid enum value 'tired'"),
        ("node.drain", {"timeout_s": -1}, "Expected `float` > 0"),
    ],
)
def test_what_does_not_fit_is_told(name: str, said: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        OPERATIONS[name].read_params(said)
    assert name in str(caught.value)
    assert told in str(caught.value)


def test_unknown_operations_name_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match=r"did you mean 'queue\.pause'"):
        OPERATIONS.find("queue.puase")
    assert OPERATIONS.find("queue.pause") is OPERATIONS["queue.pause"]


def test_no_name_is_used_twice() -> None:
    with pytest.raises(UsageError, match=r"two operations 'queue\.ls'"):
        operation("queue.ls")(OPERATIONS["queue.ls"].run)
    table = Operations()
    table.add(OPERATIONS["queue.ls"])
    assert [*table] == ["queue.ls"]


@each
def test_functions_are_coroutines_that_take_the_office_first(it: Operation) -> None:
    assert inspect.iscoroutinefunction(it.run)
    assert next(iter(inspect.signature(it.run).parameters)) == "office"
