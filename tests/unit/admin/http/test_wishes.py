"""What is read from queries and bodies, and what is refused."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.admin.errors import InvalidRequest
from postroad.admin.http.errors import NoSuchOperation
from postroad.admin.http.streaming import read_wishes
from postroad.admin.http.wishes import find_operation, wish_from_body, wish_from_query
from postroad.admin.operations import OPERATIONS
from postroad.core.errors import PostroadError
from tests.support.cases import each, naming

PEEK = OPERATIONS["queue.peek"]
RETRY = OPERATIONS["dlq.retry"]


def test_query_and_body_become_what_the_operation_takes() -> None:
    wish = wish_from_query(PEEK, [("queue", "orders"), ("limit", "7"), ("node", "beta")])
    assert wish.node == "beta"
    # What travels to another node has its types already.
    assert wish.said == {"queue": "orders", "limit": 7}
    assert PEEK.read_params(wish.said) == wish.params
    wish = wish_from_query(RETRY, [("ids", "1"), ("ids", "2")])
    assert wish.said == {"ids": ["1", "2"]}
    assert wish_from_query(RETRY, [("ids", "1")]).said == {"ids": ["1"]}
    for body in (b"", b" \n", b"{}"):
        assert wish_from_body(RETRY, body, []).said == {}
    with pytest.raises(NoSuchOperation, match=r"did you mean 'queue\.peek'"):
        find_operation("queue.pek")
    for value in ("nan", "inf", "-inf", "1e999"):
        operation = OPERATIONS["cells.ping"]
        with naming(value), pytest.raises(InvalidRequest):
            wish_from_query(operation, [("path", "a@b"), ("timeout_s", value)])


@each(
    ({"queue": "a\0b"}, "zero byte"),
    ({"queue": "a", "limit": 2**64}, "limit"),
    ({"queue": "a", "limit": 1.5}, "limit"),
    ({"queue": None}, "queue"),
    ({"queue": "a", "limits": 1}, "did you mean 'limit'"),
)
def test_bodies_that_make_no_sense(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        wish_from_body(PEEK, msgspec.json.encode(said), [])


def test_watched_operations_have_their_own_parameters() -> None:
    pairs = [
        ("operation", "queue.peek"),
        ("queue.peek.queue", "orders"),
        ("operation", "queue.ls"),
        ("operation", "queue.ls"),
        ("node", "beta"),
    ]
    peek, listed = read_wishes(pairs)
    assert (peek.operation.name, peek.said, peek.node) == (
        "queue.peek",
        {"queue": "orders"},
        "beta",
    )
    assert (listed.operation.name, listed.said, listed.node) == ("queue.ls", {}, "beta")


@each(
    ([], "say what"),
    ([("operation", "queue.ls"), ("queue", "a")], "write a parameter"),
    ([("operation", "queue.ls"), ("queue.show.queue", "a")], "write a parameter"),
    ([("operation", "queue.show")], "queue"),
    ([("operation", f"a.{number}") for number in range(40)], "more than 32"),
)
def test_watching_what_cannot_be_watched(pairs: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_wishes(pairs)


def some(names: list[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
    return st.lists(st.tuples(st.sampled_from([*names, "node", "", "x"]), st.text(max_size=8)))


def operations() -> Iterator[str]:
    yield from OPERATIONS


@given(data=st.data(), name=st.sampled_from([*operations()]))
def test_any_query_is_read_or_refused(data: st.DataObject, name: str) -> None:
    operation = OPERATIONS[name]
    pairs = data.draw(some([it.name for it in operation.parameters]))
    try:
        wish = wish_from_query(operation, pairs)
    except PostroadError:
        return
    assert operation.read_params(wish.said) == wish.params


@given(body=st.binary(max_size=40), name=st.sampled_from([*operations()]))
def test_any_body_is_read_or_refused(body: bytes, name: str) -> None:
    try:
        wish_from_body(OPERATIONS[name], body, [])
    except PostroadError:
        pass


@each(
    ("queue.pause", b'{"queue": "orders"}', ["orders"]),
    ("queue.pause", b'{"queue": "two\\nlines"}', [r"'two\nlines'"]),
    ("service.call", b'{"action": "shop.order", "params": {"item": "tea"}}', ["shop.order"]),
    ("dlq.retry", b'{"ids": ["17"]}', []),
    ("node.stop", b"", []),
)
def test_what_the_log_tells_of_a_wish(name: str, body: bytes, subjects: list[str]) -> None:
    assert wish_from_body(OPERATIONS[name], body, []).subjects == subjects
