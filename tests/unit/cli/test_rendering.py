"""What people see, kept word for word: help, and the result of every operation."""

import enum
import time
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from click.testing import CliRunner

from postroad.admin.operations import OPERATIONS
from postroad.cli.main import postroad
from postroad.cli.rendering import render_result
from postroad.cli.tables import struct_of, unwrap
from tests.support.cases import each
from tests.support.snapshot import check_snapshot

HELPED = [
    ("queue", "purge"),
    ("dlq", "retry"),
    ("flow", "begin"),
    ("call",),
    ("context",),
    ("shell",),
]


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@each(*[(words,) for words in HELPED])
def test_help(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(
        postroad, [*words, "--help"], prog_name="postroad", terminal_width=100
    )
    assert result.exit_code == 0
    check_snapshot(f"help/{'-'.join(words)}.txt", result.output)


def sample(kind: Any, name: str, depth: int = 0) -> Any:
    """A value of a type, always the same."""
    kind = unwrap(kind)
    view = struct_of(kind)
    if view is not None:
        fields = msgspec.structs.fields(view)
        return {it.name: sample(it.type, it.name, depth + 1) for it in fields}
    if get_origin(kind) in (list, tuple):
        return [sample(get_args(kind)[0], name.removesuffix("s"), depth + 1)] * 2
    if get_origin(kind) in (Union, types.UnionType):
        return sample(get_args(kind)[0], name, depth)
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if get_origin(kind) is dict or kind is dict:
        return {"some": 1} if get_args(kind)[1:] == (int,) else {"some": "text"}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind)).value
    if kind is str:
        return f"some {name}"
    plain = {bool: True, int: 1_234, float: 1_800_000_000.5 if name.endswith("at") else 12.5}
    return plain.get(kind, {"any": [1, "two"]})


def test_every_result_has_a_form_for_people() -> None:
    told = []
    for name, operation in OPERATIONS.items():
        text = render_result(operation, sample(operation.result, "thing"))
        assert text
        told.append(f"$ postroad {name.replace('.', ' ')}\n{text}\n")
    check_snapshot("results.txt", "\n".join(told))
