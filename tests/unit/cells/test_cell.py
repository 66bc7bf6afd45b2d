"""Cells themselves: names, options, and what they may do."""

from __future__ import annotations

import pytest

from postroad.cells import Cell, CellAddress, CellMessage, FunctionCell
from postroad.core.errors import ConfigError, UsageError
from tests.support.cells.workshop import Workshop


class Echo(Cell):
    """Says what it hears.

    More of it.
    """

    def received(self, message: CellMessage) -> bytes:
        return message.payload


def greet(message: CellMessage) -> str:
    """Say hello.

    To everybody.
    """
    return "hello"


@pytest.mark.parametrize("name", ["", "a@b", "a:b", "*", "a b", "a\n", "x" * 256])
def test_names_follow_the_rules(name: str) -> None:
    with pytest.raises(ConfigError):
        Echo(name)
    with pytest.raises(ConfigError):
        Echo("echo", consume=[name])
    with pytest.raises(ConfigError):
        Echo("echo", subscribe=[name])


def test_names_are_several_not_one_text() -> None:
    with pytest.raises(ConfigError, match="several names"):
        Echo("echo", consume="work")
    with pytest.raises(ConfigError, match="several names"):
        Echo("echo", subscribe="news")


@pytest.mark.parametrize("concurrency", [0, -1])
def test_concurrency_is_one_or_more(concurrency: int) -> None:
    with pytest.raises(ConfigError, match="must be 1 or more"):
        Echo("echo", concurrency=concurrency)


def test_function_must_be_one() -> None:
    with pytest.raises(ConfigError, match="must be callable"):
        FunctionCell("a", "no function")  # type: ignore[arg-type]


def test_a_cell_on_its_own_has_no_address() -> None:
    cell = Echo("echo")
    with pytest.raises(UsageError, match="in no domain"):
        _ = cell.address
    assert repr(cell) == "<Echo echo>"


async def test_a_cell_is_in_one_domain_at_a_time() -> None:
    shop, cell = Workshop(), Echo("echo")
    cell.enter(shop)  # type: ignore[arg-type]  # It needs no more than a sender has.
    assert cell.address == CellAddress("echo", "S1")
    assert repr(cell) == "<Echo echo@S1>"
    with pytest.raises(UsageError, match="in domain S1 already"):
        cell.enter(shop)  # type: ignore[arg-type]
    cell.enter(None)
    cell.enter(Workshop())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Echo("a"), "Says what it hears."),
        (FunctionCell("a", greet), "Say hello."),
        (FunctionCell("a", lambda message: None), "<lambda>"),
    ],
)
def test_description_is_one_line(cell: Cell, text: str) -> None:
    assert cell.describe().endswith(text)
    assert "\n" not in cell.describe()


async def test_what_a_cell_sends_is_from_itself() -> None:
    shop = Workshop()
    senders: list[CellAddress | None] = []

    def note(message: CellMessage) -> bytes:
        senders.append(message.sender)
        return b"noted"

    shop.add("note", note, subscribe=["news"])
    cell = Echo("echo")
    cell.enter(shop)  # type: ignore[arg-type]  # It needs no more than a sender has.
    cell.tell("note", b"")
    await cell.send("note", b"")
    cell.publish("news", b"")
    for _ in range(2):
        assert await cell.call("note", b"") == b"noted"

    assert senders == [cell.address] * 5
