"""`postroad errors`: every error explained."""

import json

import pytest

from postroad.cli.errors import known_errors
from postroad.cli.failures import NEXT
from postroad.cli.main import run


def test_every_error_of_every_layer_is_explained() -> None:
    known = {it.name: it for it in known_errors()}
    assert {"ConfigError", "StoreLockedError", "FlowNotFoundError", "NoRouteError", "NotFound"} <= {
        *known
    }
    assert [it.name for it in known.values() if not it.meaning] == []
    assert {*NEXT} <= {*known}


def test_errors_are_told_one_by_one_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["errors", "5110"]) == 0
    by_code = capsys.readouterr().out
    assert by_code == (
        "StoreLockedError, error 5110\n\n"
        "Another process has the store open; only one may.\n\n"
        "Trying again later can help.\n"
        "Try: postroad node show\n"
    )
    assert run(["errors", "StoreLockedError"]) == 0
    assert capsys.readouterr().out == by_code
    assert run(["errors", "--json"]) == 0
    codes = [it["code"] for it in json.loads(capsys.readouterr().out)]
    assert codes == sorted(codes)
    assert run(["errors"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(codes) + 1
    assert run(["errors", "StoreLoked"]) == 3
    assert "did you mean 'StoreLockedError'?" in capsys.readouterr().err
