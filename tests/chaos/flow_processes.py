"""Banks in processes of their own, as a test sees them, and what their stores tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from postroad import within
from postroad.flows.machine.state import format_flow_id, parse_flow_id
from tests.chaos.flow_bank import ship
from tests.support.durable.mail_processes import (
    READER,
    SQLITE,
    MailNode,
    database,
    introduce,
    nothing_left,
    running,
)

DISK_BYTES = 4_096
"""So small that nothing can be committed."""
UNFINISHED = "status NOT IN ('done', 'failed', 'killed')"


class Died(Exception):
    """A process ended instead of answering."""


class FlowNode(MailNode):
    """A bank that can be killed and started again, on the same store and port."""

    module = "tests.chaos.flow_node"

    def __init__(self, name: str, directory: Path, **options: Any) -> None:
        super().__init__(name, directory, **options)
        # Held by whoever waits for what it says.
        self._dialogue = asyncio.Lock()

    async def start(self, code: str = "usual", *arms: str) -> None:
        """Start it, where it was before if it was killed."""
        async with self._dialogue:
            await self.launch(code, *arms)
            try:
                self.address = await self._answer()
            except Died:
                raise AssertionError(f"{self.name} did not start") from None

    async def launch(self, code: str = "usual", *arms: str) -> None:
        """Start it, and do not wait until it has come up."""
        await self._spawn(str(self._outside), code, *arms)

    @property
    def _outside(self) -> Path:
        return self.directory / f"{self.name}.txt"

    def tell(self, *words: object) -> None:
        """Have it do something; in vain if it is dead by now."""
        if not self.process.stdin.is_closing():
            self.process.stdin.write(json.dumps(words).encode() + b"\n")

    async def _answer(self) -> Any:
        line = await self.line()
        if not line:
            raise Died(self.name)
        return json.loads(line)

    async def do(self, *words: object) -> Any:
        """Have it do something, and wait for what it says to that; raises Died if it ends."""
        async with self._dialogue:
            self.tell(*words)
            return await self._answer()

    async def forbid_writing(self) -> None:
        """Have its store take nothing: the disk is full, or the database can only be read."""
        if self.dsn:
            self._set_read_only("on")
        else:
            assert await self.do("disk", DISK_BYTES) == "limited"

    async def allow_writing(self) -> None:
        """Undo that, also if it is dead by now."""
        if self.dsn:
            self._set_read_only("off")
        elif not self.is_dead:
            assert await self.do("disk", 0) == "limited"

    def _set_read_only(self, switch: str) -> None:
        name = self.dsn.rpartition("/")[2]
        self.query(f"ALTER DATABASE {name} SET default_transaction_read_only = {switch}")
        # It holds for sessions that begin from now on.
        self.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = current_database() AND application_name <> '{READER}'"
        )

    # Flows.

    async def begin(self, client: str, flow: str, *args: object) -> str:
        """Have it begin a flow, unless one was begun as that; its id."""
        return str(await self.do("begin", client, flow, args))

    def order_from_outside(self, subject: str, address: str) -> None:
        """Write a row, begin a flow and signal it, with a connection to its store."""
        outbox = within.Outbox(schema=self.name)
        with self.transaction() as connection:
            mark = "%s" if self.dsn else "?"
            statement = f"INSERT INTO notes (subject, text) VALUES ({mark}, {mark})"
            connection.execute(statement, (subject, "ordered"))
            outbox.start_flow_with_id(connection, subject, ship, subject)
            outbox.signal(connection, subject, "address", address)

    async def result(self, client: str) -> dict[str, Any]:
        """What came of a flow: `value`, or `error` and `text`."""
        result: dict[str, Any] = await self.do("result", client)
        return result

    async def operate(self, what: str, id: str, *args: object) -> bool:
        """Have something done to a flow; whether that was possible."""
        return bool(await self.do("operate", what, id, args))

    async def show(self, id: str) -> dict[str, Any]:
        """A flow, as operators see it."""
        views: list[dict[str, Any]] = await self.do("list")
        (found,) = [it for it in views if it["id"] == id]
        return found

    # What its store and its file tell.

    def status(self, id: str) -> str:
        rows = self.query("SELECT status FROM postroad_flows WHERE id = ?", parse_flow_id(id))
        return str(rows[0][0]) if rows else "unknown"

    def responders(self, id: str) -> list[str]:
        """The flows here that respond to one of another bank."""
        rows = self.query(
            "SELECT id FROM postroad_flows WHERE origin_flow = ? ORDER BY id", parse_flow_id(id)
        )
        return [format_flow_id(number) for (number,) in rows]

    def moves(self, payment: str) -> list[int]:
        """How money went in a payment."""
        rows = self.query('SELECT cents FROM moves WHERE payment = ? ORDER BY "row"', payment)
        return [cents for (cents,) in rows]

    def notes(self, subject: str) -> list[str]:
        rows = self.query('SELECT text FROM notes WHERE subject = ? ORDER BY "row"', subject)
        return [text for (text,) in rows]

    def done_outside(self, subject: str) -> list[tuple[str, str]]:
        """What was done outside of the store: what it was, and the id of the step."""
        text = self._outside.read_text() if self._outside.exists() else ""
        lines = [line.split() for line in text.splitlines()]
        return [(what, step_id) for about, what, step_id in lines if about == subject]

    @property
    def begun(self) -> int:
        """Flows that have begun."""
        return int(self.query("SELECT COUNT(*) FROM postroad_flows")[0][0])

    @property
    def unfinished(self) -> int:
        """Flows that have not ended."""
        return int(self.query(f"SELECT COUNT(*) FROM postroad_flows WHERE {UNFINISHED}")[0][0])

    @property
    def kept(self) -> int:
        """What was said to flows and they have not read."""
        return int(self.query("SELECT COUNT(*) FROM postroad_flow_mail")[0][0])

    @property
    def left(self) -> int:
        """What is not done with: mail, flows, and what was said to them."""
        return self.waiting + self.unfinished + self.kept


async def all_ended(*banks: FlowNode, after: str = "") -> None:
    """Return when all flows have ended and nothing is on its way."""
    await nothing_left(lambda: {bank.name: bank.left for bank in banks}, after)


@asynccontextmanager
async def flow_nodes(
    directory: Path, *names: str, store: str = SQLITE, is_cold: bool = False
) -> AsyncIterator[list[FlowNode]]:
    """Banks that run and know each other; killed at the end."""
    with database(store) as dsn:
        banks = [FlowNode(name, directory, dsn=dsn, is_cold=is_cold) for name in names]
        async with running(banks):
            introduce(*banks)
            yield banks
