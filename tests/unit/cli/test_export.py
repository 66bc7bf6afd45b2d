"""`postroad export`: documents of what is not running."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroad.cli.main import postroad, run
from tests.support.cases import each

PROGRAM = '''\
from postroad.services.broker import Broker
from postroad.services.service import Service, action


class Orders(Service):
    name = "orders"

    @action
    def place(self, ctx, item: str) -> int:
        """Place an order."""
        return 1


class Stock(Service):
    def __init__(self, size):
        self.size = size

    @action
    def count(self, ctx) -> int:
        return self.size


made = Stock(5)
both = [Orders, made]
number = 5
broker = Broker("a")
broker.add(Orders())
'''


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"shop_{tmp_path.name}".replace("-", "_")
    tmp_path.joinpath(f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def asyncapi(*arguments: str) -> Result:
    return CliRunner().invoke(postroad, ["export", "asyncapi", *arguments])


@each(
    (":Orders", ["orders.place"]),
    (":made", ["stock.count"]),
    (":both", ["orders.place", "stock.count"]),
    (":broker", ["orders.place"]),
    ("", ["stock.count", "orders.place"]),
)
def test_services_of_all_sorts(name: str, operations: list[str], program: str) -> None:
    result = asyncapi(program + name, "--title", "Shop", "--version", "2.0")
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert document["info"] == {"title": "Shop", "version": "2.0"}
    assert [*document["operations"]] == operations


@each(
    ("{}:number", "is no service"),
    ("{}:nothing", "has no 'nothing'"),
    ("{}:Stock", "name one that is made"),
    ("no_such_module_at_all", "there is no module 'no_such_module_at_all'"),
    ("json", "has no services of its own"),
    (":x", "is no name of a module"),
)
def test_what_is_wrong_is_said(
    target: str, told: str, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "asyncapi", target.format(program)]) == 1
    assert told in capsys.readouterr().err


def test_document_of_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "openapi"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["openapi"].startswith("3.1")
    assert "get" in document["paths"]["/api/v1/queue/ls"]
