"""Two nodes for stories that are told step by step: alpha posts, and beta writes rows."""

from __future__ import annotations

import asyncio

from postroad.core.errors import StoreUnavailableError
from postroad.durable import DurableQueues, DurableQueuesConfig, MemoryDisk, Message, Transaction
from postroad.durable.store.backends.sqlite import SqliteStoreConnection
from postroad.durable.store.tables import queries as query
from postroad.testing import SimCluster
from tests.simulation.durable.process import Machine

QUEUE = "orders"
CONFIG = DurableQueuesConfig(
    batch_messages_max=1,
    open_timeout_s=2.0,
    window_timeout_s=3.0,
    bridge_max_delay_s=1.0,
)
# What a few messages take where nothing disturbs them.
DELIVERY_S = 5.0


class Pair:
    def __init__(
        self, sim: SimCluster, *, has_bridge: bool = True, config: DurableQueuesConfig = CONFIG
    ) -> None:
        self.sim = sim
        self.alpha = Machine(sim, "alpha", config, (), _rest, has_bridge=has_bridge)
        self.beta = self.add_beta()
        self.introduce(self.beta)
        for machine in (self.alpha, self.beta):
            machine.start()
        sim.run_until(self._is_ready, timeout=DELIVERY_S, description="both run")

    def _is_ready(self) -> bool:
        return self.alpha.is_ready and self.beta.is_ready

    def add_beta(self, host: str | None = None, disk: MemoryDisk | None = None) -> Machine:
        return Machine(self.sim, "beta", CONFIG, (QUEUE,), _handle_all, host=host, disk=disk)

    def introduce(self, beta: Machine) -> None:
        assert self.alpha.directory is not None
        self.alpha.directory.set("beta", beta.address)

    @property
    def mail(self) -> DurableQueues:
        assert self.alpha.mail is not None
        return self.alpha.mail

    def post(self, *words: str, queue: str = QUEUE, delay: float | None = None) -> None:
        for word in words:
            self.sim.run(
                self.mail.send(queue, word.encode(), to="beta", key="one", delay=delay),
                self.alpha.node,
            )

    def handled(self) -> list[str]:
        rows = self.beta.disk.execute("SELECT word FROM words ORDER BY number")
        return [word for (word,) in rows]

    def outbox(self) -> int:
        rows = self.alpha.disk.execute("SELECT COUNT(*) FROM postroad_outbox")
        return int(rows.fetchone()[0])

    def dead(self) -> list[str]:
        """The words of alpha's dead letters, in the order they died."""
        database = SqliteStoreConnection(self.alpha.disk.connection, "alpha")
        return [
            letter.message.body.decode()
            for letter in query.list_dead_letters(database, None, 0, 1_000)
        ]

    def await_handled(self, *words: str, within: float = DELIVERY_S) -> None:
        """Wait until beta has handled exactly these; they must stay all."""
        claim = f"beta has handled {', '.join(words)}"
        self.sim.run_until(lambda: self.handled() == list(words), timeout=within, description=claim)
        self.sim.run_for(DELIVERY_S)
        assert self.handled() == list(words)

    def trouble(self) -> str | None:
        assert self.mail.bridges.manager is not None
        (health,) = self.mail.bridges.manager.status()
        return health.last_error if health.state == "mismatch" else None

    def await_trouble(self, words: str) -> None:
        self.sim.run_until(
            lambda: words in (self.trouble() or ""),
            timeout=DELIVERY_S,
            description=f"bridge: {words}",
        )

    def restart(self, machine: Machine, backup: bytes | None = None) -> None:
        """Kill a process and start another one, on an older disk if there is one."""
        machine.kill()
        if backup is not None:
            machine.disk.restore(backup)
        machine.start()
        self.sim.run_until(self._is_ready, timeout=DELIVERY_S, description="both run")

    def backup(self, machine: Machine) -> bytes:
        while True:
            try:
                return machine.disk.backup()
            except StoreUnavailableError:
                self.sim.run_for(0.01)


async def _rest(mail: DurableQueues) -> None:
    await asyncio.Event().wait()


async def _handle_all(mail: DurableQueues) -> None:
    async with mail.transaction() as tx:
        await tx.execute(
            "CREATE TABLE IF NOT EXISTS words (number INTEGER PRIMARY KEY AUTOINCREMENT, word TEXT)"
        )
    await mail.consume(QUEUE, _handle)
    await _rest(mail)


async def _handle(message: Message, tx: Transaction) -> None:
    await tx.execute("INSERT INTO words (word) VALUES (?)", (message.body.decode(),))
