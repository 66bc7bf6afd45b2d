"""Banks in processes of their own, as a test sees them, and what their stores tell."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from postroad.flows.head import parse_id, show_id
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_processes import MailNode
from tests.support.servers.process import free_port
from tests.support.source_tree import ROOT

UNFINISHED = "status NOT IN ('done', 'failed', 'killed')"


class Died(Exception):
    """A process ended instead of answering."""


class FlowNode(MailNode):
    """A bank that can be killed and started again, on the same store and port."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name, directory)
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
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        port = self.address.rpartition(":")[2] or f"{free_port()}"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.flow_node"),
            *(self.name, str(self._directory), port, code, *arms),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )

    @property
    def is_dead(self) -> bool:
        return self._process is None or self.process.returncode is not None

    async def stop(self) -> None:
        """End it the soft way."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await asyncio.wait_for(self.process.wait(), DEADLINE_S) == 0
        self._close()

    def tell(self, *words: object) -> None:
        """Have it do something; in vain if it is dead by now."""
        assert self.process.stdin is not None
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

    async def limit_disk(self, size: int) -> None:
        """Have none of its files grow beyond a size, from the return on; 0 for as it was."""
        assert await self.do("disk", size) == "limited"

    # Flows.

    async def begin(self, client: str, flow: str, *args: object) -> str:
        """Have it begin a flow, unless one was begun as that; its id."""
        return str(await self.do("begin", client, flow, args))

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
        rows = self.query("SELECT status FROM postroad_flows WHERE id = ?", parse_id(id))
        return str(rows[0][0]) if rows else "unknown"

    def responders(self, id: str) -> list[str]:
        """The flows here that respond to one of another bank."""
        rows = self.query(
            "SELECT id FROM postroad_flows WHERE origin_flow = ? ORDER BY id", parse_id(id)
        )
        return [show_id(number) for (number,) in rows]

    def moves(self, payment: str) -> list[int]:
        """How money went in a payment."""
        rows = self.query("SELECT cents FROM moves WHERE payment = ? ORDER BY rowid", payment)
        return [cents for (cents,) in rows]

    def notes(self, subject: str) -> list[str]:
        rows = self.query("SELECT text FROM notes WHERE subject = ? ORDER BY rowid", subject)
        return [text for (text,) in rows]

    def done_outside(self, subject: str) -> list[tuple[str, str]]:
        """What was done outside of the store: what it was, and the id of the step."""
        path = self._directory / f"{self.name}.txt"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
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
    def left(self) -> dict[str, int]:
        """Everything that is not done with."""
        everything = {"mail": self.waiting, "flows": self.unfinished, "kept": self.kept}
        return {what: count for what, count in everything.items() if count}


async def all_ended(*banks: FlowNode, after: str = "") -> None:
    """Return when all flows have ended and nothing is on its way.

    That may take long on a busy machine; it fails when no less is left than DEADLINE_S ago.
    """
    now = asyncio.get_running_loop().time
    fewest, deadline = math.inf, 0.0
    while any((left := {bank.name: bank.left for bank in banks}).values()):
        if (count := sum(sum(it.values()) for it in left.values())) < fewest:
            fewest, deadline = count, now() + DEADLINE_S
        assert now() < deadline, f"still left: {left} {after}"
        await asyncio.sleep(0.01)


def introduce(banks: list[FlowNode]) -> None:
    """Tell all of them where the others are."""
    for bank in banks:
        bank.meet(*(other for other in banks if other is not bank))


@asynccontextmanager
async def flow_nodes(directory: Path, *names: str) -> AsyncIterator[list[FlowNode]]:
    """Banks that run and know each other; killed at the end."""
    banks = [FlowNode(name, directory) for name in names]
    try:
        await asyncio.gather(*(bank.start() for bank in banks))
        introduce(banks)
        yield banks
    finally:
        for bank in banks:
            await bank.kill()
