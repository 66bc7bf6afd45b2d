"""How steps are called, and what their functions are given."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy.orm import Session as SqlSession

from postroad.core.errors import UsageError
from postroad.durable import RetryPolicy, Transaction
from postroad.flows import INJECTED, StepCaller, StepId, StoreConnection
from postroad.flows.steps import Source, StepSignature, step_signature

if TYPE_CHECKING:
    from postroad.durable import Transaction as Hidden


async def in_transaction(number: int, tx: Transaction = INJECTED, key: StepId = INJECTED) -> Any:
    return number, tx, key


def on_sqlite(db: sqlite3.Connection = INJECTED) -> None: ...
def on_postgres(db: psycopg.Connection[Any] = INJECTED) -> None: ...
def on_any(db: StoreConnection = INJECTED) -> None: ...
def on_session(db: SqlSession = INJECTED) -> None: ...


async def test_injection_is_by_annotation_not_by_name() -> None:
    signature = step_signature(in_transaction)
    assert signature.is_async and signature.is_transaction
    values = {Source.TRANSACTION: "tx", Source.STEP_ID: StepId("0.1")}
    args, kwargs = signature.bind((7,), {}, values)
    assert await in_transaction(*args, **kwargs) == (7, "tx", "0.1")
    for function in (on_sqlite, on_postgres, on_any):
        assert step_signature(function).sources == {Source.CONNECTION}
    assert step_signature(on_session).sources == {Source.SQL_SESSION}


def test_name_alone_is_not_injected() -> None:
    def dial(connection: str, tx: int, step_id: str = "") -> str:
        return f"{connection} {tx} {step_id}"

    signature = step_signature(dial)
    assert not signature.sources and not signature.is_transaction
    args, kwargs = signature.bind(("tcp", 3), {}, {})
    assert dial(*args, **kwargs) == "tcp 3 "


@pytest.mark.parametrize(
    ("name", "annotation"),
    [
        ("tx", "Transaction"),
        ("connection", "StoreConnection"),
        ("sql_session", "sqlalchemy.orm.Session"),
        ("step_id", "StepId"),
    ],
)
def test_former_injection_by_name_raises_with_annotation(name: str, annotation: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def work(number: int, {name}): pass", scope)
    with pytest.raises(UsageError, match=f"write `{name}: {annotation} = INJECTED`"):
        StepSignature(scope["work"]).bind((1,), {}, {})


def test_type_that_is_not_there_at_run_time_is_explained() -> None:
    async def work(tx: Hidden = INJECTED) -> None: ...

    with pytest.raises(UsageError, match=r"`Hidden` of parameter `tx` of .*work"):
        step_signature(work)


def test_options_leave_the_keywords_to_the_function() -> None:
    def fetch(url: str, *, timeout: float, name: str = "", **rest: Any) -> None: ...

    retry = RetryPolicy(max_attempts=2)
    caller = StepCaller().with_options(retry=retry, timeout=9, name="get")
    step = caller.make(fetch, ("x",), {"timeout": 1.0, "retry": "all"})
    assert (step.name, step.retry, step.timeout_s) == ("get", retry, 9)
    assert step.kwargs == {"timeout": 1.0, "retry": "all"}


def test_option_given_as_an_argument_is_explained() -> None:
    expected = r"no parameter 'retry'.*with_options\(retry=\.\.\., timeout=\.\.\.\)"
    with pytest.raises(UsageError, match=expected):
        StepCaller().make(on_any, (), {"retry": None, "timeout": 3})
