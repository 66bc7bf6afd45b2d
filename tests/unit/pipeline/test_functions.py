"""Functions are found by their paths, and what they return is looked at."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline.functions import (
    InvalidResultError,
    import_function,
    import_object,
    normalize_result,
)


class Holder:
    @staticmethod
    def inner() -> None:
        """Something with a dot in its path."""


def test_things_are_found_by_their_paths() -> None:
    assert import_function("os.path:join").__name__ == "join"
    assert import_object(f"{__name__}:Holder.inner") is Holder.inner


def test_what_is_not_there_is_named() -> None:
    for path, told in (
        ("os.path", "write package.module:name"),
        (":join", "write package.module:name"),
        ("no_such_package.module:f", "cannot be imported here: No module named 'no_such_package'"),
        ("os.path:joni", "there is no 'joni' in it; did you mean 'join'?"),
        ("os.path:zzzzzz", "there is no 'zzzzzz' in it$"),
    ):
        with pytest.raises(ConfigError, match=told):
            import_object(path)


def test_a_module_that_fails_is_told_of(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with open(f"{tmp_path}/breaks_at_once.py", "w", encoding="utf-8") as file:
        file.write("1 / 0\n")
    with pytest.raises(ConfigError, match=r"importing 'breaks_at_once'.*ZeroDivisionError"):
        import_object("breaks_at_once:f")


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="'os:sep' is not a function but str"):
        import_function("os:sep")


def several() -> Iterator[dict[str, int]]:
    yield {"n": 1}
    yield {"n": 2}


def test_nothing_one_or_several() -> None:
    for result, segments in (
        (None, []),
        ([], []),
        ({"n": 1}, [{"n": 1}]),
        (OrderedDict(n=1), [{"n": 1}]),
        (({"n": 1}, {"n": 2}), [{"n": 1}, {"n": 2}]),
        (several(), [{"n": 1}, {"n": 2}]),
    ):
        assert normalize_result(result) == segments, (result, segments)


def test_anything_else_is_refused() -> None:
    refused: list[object] = [1, "text", b"bytes", True, [{"n": 1}, None], [[{}]], {1: 2}.keys()]
    for result in refused:
        with pytest.raises(InvalidResultError, match="returns segments"):
            normalize_result(result)
