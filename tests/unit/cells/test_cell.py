"""Cells themselves: names, options, and what they may do."""

import pytest

from postroad.cells import Cell, CellAddress, CellMessage, FunctionCell
from postroad.core.errors import ConfigError, UsageError
from tests.support.cells.offline_domain import Workshop


class Echo(Cell):
    """Says what it hears.

    More of it.
    """

    def handle(self, message: CellMessage) -> bytes:
        return message.payload


def greet(message: CellMessage) -> str:
    """Say hello.

    To everybody.
    """
    return "hello"


def test_invalid_cell_options_are_refused(subtests: pytest.Subtests) -> None:
    for name in ["", "a@b", "a:b", "*", "a b", "a\n", "x" * 256]:
        with subtests.test(name=name):
            with pytest.raises(ConfigError):
                Echo(name)
            with pytest.raises(ConfigError):
                Echo("echo", consume=[name])
            with pytest.raises(ConfigError):
                Echo("echo", subscribe=[name])

    with pytest.raises(ConfigError, match="expected a list of names"):
        Echo("echo", consume="work")
    with pytest.raises(ConfigError, match="expected a list of names"):
        Echo("echo", subscribe="news")

    for concurrency in [0, -1]:
        refusal = pytest.raises(ConfigError, match="must be 1 or more")
        with subtests.test(concurrency=concurrency), refusal:
            Echo("echo", concurrency=concurrency)

    with pytest.raises(ConfigError, match="must be callable"):
        FunctionCell("a", "no function")  # type: ignore[arg-type]


async def test_a_cell_is_in_one_domain_at_a_time() -> None:
    cell = Echo("echo")
    with pytest.raises(UsageError, match="has no domain"):
        _ = cell.address
    assert repr(cell) == "<Echo echo>"

    shop, cell = Workshop(), Echo("echo")
    cell.attach(shop)  # type: ignore[arg-type]  # It needs no more than a sender has.
    assert cell.address == CellAddress("echo", "S1")
    assert repr(cell) == "<Echo echo@S1>"
    with pytest.raises(UsageError, match="domain S1 has it already"):
        cell.attach(shop)  # type: ignore[arg-type]
    cell.attach(None)
    cell.attach(Workshop())  # type: ignore[arg-type]


def test_description_is_one_line() -> None:
    for cell, text in [
        (Echo("a"), "Says what it hears."),
        (FunctionCell("a", greet), "Say hello."),
        (FunctionCell("a", lambda message: None), "<lambda>"),
    ]:
        assert cell.describe().endswith(text), text
        assert "\n" not in cell.describe(), text


async def test_cell_sends_under_its_own_address() -> None:
    shop = Workshop()
    senders: list[CellAddress | None] = []

    def note(message: CellMessage) -> bytes:
        senders.append(message.sender)
        return b"noted"

    shop.add("note", note, subscribe=["news"])
    cell = Echo("echo")
    cell.attach(shop)  # type: ignore[arg-type]  # It needs no more than a sender has.
    cell.send_nowait("note", b"")
    await cell.send("note", b"")
    cell.publish("news", b"")
    for _ in range(2):
        assert await cell.call("note", b"") == b"noted"

    assert senders == [cell.address] * 5
