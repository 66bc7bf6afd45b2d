"""Commands to cells that come from other domains."""

from __future__ import annotations

import pytest

from postroad import cells
from postroad.cells.config import RemoteCommands
from postroad.core.errors import ConfigError, RemoteHandlerError
from postroad.net import MessagingService
from tests.support.cells.nodes import CLUSTER, Domains, forged_domain


class Till(cells.Cell):
    """Has money, and lets it be counted."""

    def __init__(self, name: str = "till") -> None:
        super().__init__(name)
        self.amount = 100

    def handle(self, message: cells.CellMessage) -> int:
        return self.amount

    @cells.command("count", is_read=True)
    def count(self) -> str:
        """Return the amount."""
        return f"{self.amount}"

    @cells.command("count again")
    def count_again(self) -> str:
        """Return the amount after a change."""
        self.amount += 1
        return f"{self.amount}"

    @cells.command("pay")
    def pay(self) -> str:
        """Pay it out."""
        self.amount = 0
        return "paid"


class Parrot(cells.Cell):
    """Answers commands in its own way."""

    def handle(self, message: cells.CellMessage) -> None:
        return None

    def on_command(self, line: str) -> str:
        return f"{line}!"


READING = [
    ("System@C1", "domains"),
    ("System@C1", "info"),
    ("System@C1", "ps"),
    ("System@C1", "routes"),
    ("System@C1", "route find till"),
    ("System@C1", "ping till"),
    ("System@C1", "traceroute till"),
    ("System@C1", "log"),
    ("System@C1", "log ls"),
    ("System@C1", "help"),
    ("System@C1", "help kill"),
    ("System@C1", ""),
    ("RoutingMgr@C1", "ls"),
    ("RoutingMgr@C1", "check"),
    ("lm@C1", "ls"),
    ("lm@C1", "info"),
    ("tunnel-S1@C1", "info"),
    ("till@C1", "info"),
    ("till@C1", "count"),
]
CHANGING = [
    ("System@C1", "kill till"),
    ("System@C1", "drain till"),
    ("System@C1", "kill tunnel-S1"),
    ("System@C1", "route add queue-x till"),
    ("System@C1", "route delete queue-x till"),
    ("System@C1", "send till text"),
    ("System@C1", "run till pay"),
    ("System@C1", "log set debug"),
    ("System@C1", "log reset"),
    ("till@C1", "pay"),
    ("till@C1", "count again"),
    ("till@C1", "'count' again"),
    ("parrot@C1", "hello"),
    ("parrot@C1", "info"),
]
BYPASSES = ["relay@C1:{}", "*@C1:{}", "relay@S1:{}", "relay@C1:relay@C1:{}", "System@C1:{}"]


@pytest.mark.parametrize("allowed", ["off", "read"])
async def test_remote_commands_are_limited_by_the_access_setting(
    allowed: RemoteCommands, subtests: pytest.Subtests
) -> None:
    async with Domains(1, 1, remote_commands=allowed) as domains:
        till = Till()
        for added in (till, Till("relay"), Parrot("parrot")):
            await domains["C1"].add_cell(added)
        await domains["S1"].add_cell(Till("relay"))
        domains["C1"].change_routes(
            added=[
                cells.Route.alias(cells.CellAddress("manager"), cells.CellAddress("System", "C1"))
            ]
        )
        table = domains["C1"].table
        for cell, line in READING if allowed == "read" else [*READING, *CHANGING]:
            with subtests.test(cell=cell, line=line):
                if allowed == "read":
                    assert await domains["S1"].run_command(cell, line)
                else:
                    await is_refused(domains["S1"], cell, line)
        for cell, line in CHANGING:
            for path in (cell, *(bypass.format(cell) for bypass in BYPASSES)):
                with subtests.test(path=path, line=line):
                    await is_refused(domains["S1"], path, line)
        await is_refused(domains["S1"], "manager", "kill till")
        async with forged_domain(domains["C1"], role=cells.Role.CORE) as forged:
            for source in ("p@X:*@X", "System@C1:*@C1:p@X:*@X", "*@X", "p:*@X"):
                way = cells.CellPath.parse(source)
                forged.send("System@C1", b"kill till", content_type="command", source=way)
            await forged.answer_to(forged.send("System@C1", b"info", content_type="command"))
        assert till.amount == 100
        assert "till" in domains["C1"].cells
        assert domains["C1"].table == table


async def is_refused(domain: cells.CellDomain, path: str, line: str) -> None:
    with pytest.raises(RemoteHandlerError, match="domain C1 rejected a remote command") as caught:
        await domain.run_command(path, line, timeout=5)
    assert caught.value.remote_code == cells.CommandRejectedError.code


@pytest.mark.parametrize("allowed", ["off", "read", "change"])
async def test_local_commands_are_all_allowed(allowed: RemoteCommands) -> None:
    async with Domains(1, 1, remote_commands=allowed) as domains:
        await domains["C1"].add_cell(Till())
        await domains["C1"].add_cell(Till("relay"))
        assert await domains["C1"].run_command("till", "pay") == "paid"
        assert await domains["C1"].run_command("relay@C1:till@C1", "count") == "0"
        assert await domains["C1"].run_command("System@C1", "kill till") == "till is removed"
        # What finds out about others is no command to them.
        for line in ("ping System@C1", "traceroute System@C1"):
            assert "rejected" not in await domains["S1"].run_command("System", line)
        assert "C1 alone reports" in await domains["S1"].run_command("RoutingMgr", "check")


async def test_remote_changes_are_allowed_where_configured() -> None:
    async with Domains(1, 1, remote_commands="change") as domains:
        await domains["C1"].add_cell(Till())
        await domains["C1"].add_cell(Parrot("parrot"))
        assert await domains["S1"].run_command("till@C1", "pay") == "paid"
        assert await domains["S1"].run_command("parrot@C1", "hello") == "hello!"
        assert await domains["S1"].run_command("System@C1", "kill till") == "till is removed"


async def test_remote_commands_are_read_only_by_default() -> None:
    async with MessagingService(CLUSTER, "C1") as service:
        assert cells.CellDomain(service).remote_commands == "read"
        with pytest.raises(ConfigError, match="remote_commands='all' must be one of off, read"):
            cells.CellDomain(service, remote_commands="all")  # type: ignore[arg-type]  # That is the test.
