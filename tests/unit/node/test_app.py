"""What is found in a program, and what is said when there is nothing to find."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import RetryPolicy
from postroad.node.app import App, app_of, load_app, load_module
from postroad.node.queues.consuming import consumer

PROGRAM = """
    from contextlib import asynccontextmanager

    from postroad.cells import Cell
    from postroad.flows import FlowContext, flow
    from postroad.node import consumer
    from postroad.services import Context, Service, action


    class Greeter(Service):
        name = "greeter"

        @action
        async def hello(self, ctx: Context, name: str) -> str:
            return f"Hello {name}!"


    class Echo(Cell):
        def __init__(self) -> None:
            super().__init__("echo")

        def handle(self, message):
            return message.body


    @flow
    async def order(ctx: FlowContext, item: str) -> str:
        return item


    also_order = order


    @consumer("orders", concurrency=3)
    async def take(message, tx):
        return None


    @consumer("returns")
    @consumer("complaints")
    async def hear(message, tx):
        return None


    @asynccontextmanager
    async def lifespan(node):
        yield
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "shop_of_a_test.py"
    path.write_text(textwrap.dedent(PROGRAM))
    before = sys.path.copy()
    yield path
    sys.path[:] = before
    sys.modules.pop(path.stem, None)


def test_program_is_found_once_and_by_module_name(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = load_app(str(program))
    assert [it.name for it in app.services] == ["greeter"]
    assert [definition.name for definition in app.flows] == ["order"]
    assert [it.name for it in app.cells] == ["echo"]
    assert [(it.queue, it.concurrency) for it in app.consumers] == [
        ("orders", 3),
        ("complaints", 1),
        ("returns", 1),
    ]
    assert app.lifespan is not None
    assert not app.is_empty
    monkeypatch.chdir(program.parent)
    assert [it.name for it in load_app(program.stem).services] == ["greeter"]


def test_services_that_are_made_are_taken_as_they_are(program: Path) -> None:
    with program.open("a") as file:
        file.write("\nmade = Greeter()\n")
    module = load_module(str(program))
    assert app_of(module).services == [module.made]


def test_what_is_only_imported_is_not_made(program: Path) -> None:
    other = program.with_name("imports_a_shop.py")
    other.write_text(f"from {program.stem} import Greeter, order\n")
    app = load_app(str(other))
    assert [definition.name for definition in app.flows] == ["order"]
    assert not app.services
    sys.modules.pop(other.stem)


def test_programs_that_cannot_run_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "empty_of_a_test.py"
    path.write_text("x = 1\n")
    with pytest.raises(ConfigError, match="has nothing to run: no Service, no @flow"):
        load_app(str(path))
    sys.modules.pop(path.stem)
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.py"):
        load_app("nowhere.py")
    with pytest.raises(ConfigError, match="there is no module 'nowhere_at_all'"):
        load_app("nowhere_at_all")
    with pytest.raises(ConfigError, match="'' is no name of a module"):
        load_app("")
    path = tmp_path / "fails_in_a_test.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load_app(str(path))
    assert path.stem not in sys.modules
    assert App().is_empty


def test_service_that_needs_arguments_is_an_error(program: Path) -> None:
    with program.open("a") as file:
        file.write("\nclass Needy(Service):\n    name = 'needy'\n")
        file.write("    def __init__(self, what):\n        super().__init__()\n")
    with pytest.raises(ConfigError, match="Needy cannot be made without arguments"):
        load_app(str(program))


def test_how_a_queue_is_consumed_is_kept() -> None:
    retry = RetryPolicy(max_attempts=2)

    @consumer("orders", ordered_by_key=False, retry=retry)
    def take(message: object, tx: object) -> None:
        return None

    (consuming,) = take._postroad_consumers  # type: ignore[attr-defined]
    assert consuming.handler is take
    assert (consuming.queue, consuming.ordered_by_key, consuming.retry) == ("orders", False, retry)
