"""A node that dies at any commit, or at all: from queue to queue nothing is lost or doubled.

The job keeps its account in the store of the mail. Letters come in pages, urgent ones by
themselves, and some segments fail at first.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from postroad.durable import MemoryDisk, MemoryStore, Store, StoredMessage
from postroad.durable.store.tables import queries as query
from postroad.pipeline import (
    Job,
    LocalRunner,
    MemoryInput,
    MemoryOutput,
    QueueInput,
    QueueOutput,
    Segment,
    Task,
    TaskType,
)
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.functions import Function
from tests.support.durable.nodes import PEER, QUEUE, make_letter, opened, put
from tests.support.pipeline.crashes import POISON, CrashBehaviour, Killer, Mortal, RollsBack
from tests.support.pipeline.desk_jobs import JOB, input_task
from tests.unit.pipeline.connectors.queue_stores import NODE

LETTERS = 24


class Node(Mortal):
    """A node whose job reads one queue, and posts to a peer and to itself."""

    def __init__(self) -> None:
        self._disk = MemoryDisk(RollsBack())
        self._calls: Counter[int] = Counter()

    def find(self, name: str) -> Function:
        return {"fail_at_first": self._fail_at_first}[name]

    def _fail_at_first(self, segment: Segment) -> Segment:
        number = segment["n"]
        self._calls[number] += 1
        if number == POISON or (number % 4 == 1 and self._calls[number] == 1):
            raise ValueError(number)
        return segment

    @property
    def job(self) -> Job:
        tasks = [
            input_task(batch_size=5),
            Task(name="odd", type=TaskType.FUNCTION, fn="fail_at_first"),
            *(Task(name=it, type=TaskType.OUTPUT, connector="queue") for it in ("own", "peer")),
        ]
        return Job(
            name=JOB, workflow=[("in", "odd"), ("odd", "own"), ("odd", "peer")], catalog=tasks
        )

    async def fill(self) -> None:
        async with opened(MemoryStore(self._disk), NODE) as store:
            for start in range(0, LETTERS, 8):
                numbers = range(start, start + 8)
                await put(
                    store,
                    *(
                        make_letter(n, body=b'{"n":%d}' % n, priority=int(n % 8 == 7))
                        for n in numbers
                    ),
                )

    async def live(self, point: str, at: int | None = None) -> Killer:
        store = MemoryStore(self._disk)
        await store.open(NODE)
        killer = Killer(self._disk, at)
        outputs = {"own": QueueOutput(store, NODE, "own"), "peer": QueueOutput(store, PEER, "out")}
        inputs = {"in": QueueInput(store, QUEUE, bounded=True)}
        await killer.run(LocalRunner(self.job, inputs, outputs, store, find=self.find), point)
        with killer.closing():
            await store.close()
        return killer

    async def check(self) -> None:
        async with opened(MemoryStore(self._disk), NODE) as store:
            expected = [n for n in range(LETTERS) if n != POISON]
            assert numbers(await store.read(query.peek_queue, "own", 100)) == expected
            assert numbers(await store.read(query.peek_outbox, PEER, 100)) == expected
            assert await store.read(query.peek_queue, QUEUE, 100) == []
            await self._check_account(store)

    async def _check_account(self, store: Store) -> None:
        dead = await store.read(lambda it: JobStore(it, JOB).list_dead(10))
        assert [msgspec.msgpack.decode(it.segment) for it in dead] == [{"n": POISON}]
        assert await store.read(lambda it: JobStore(it, JOB).deliveries()) == []
        # What is counted for senders is what is there.
        sizes = await store.read(query.sizes_by_sender)
        assert set(sizes) == {NODE}


def numbers(letters: list[StoredMessage]) -> list[int]:
    return sorted(msgspec.json.decode(it.body)["n"] for it in letters)


@pytest.mark.slow
class TestQueueCrashes(CrashBehaviour):
    async def make(self) -> Node:
        node = Node()
        await node.fill()
        return node


@pytest.mark.parametrize("is_input", [True, False])
async def test_an_account_in_another_store_is_refused(is_input: bool) -> None:
    job = Job(
        name=JOB,
        workflow=[("in", "out")],
        catalog=[input_task(), Task(name="out", type=TaskType.OUTPUT, connector="queue")],
    )
    async with opened(MemoryStore(), NODE) as mail, opened(MemoryStore(), JOB) as account:
        await put(mail, make_letter(1, body=b"{}"))
        source = QueueInput(mail, QUEUE, bounded=True) if is_input else MemoryInput([{"n": 1}])
        target = MemoryOutput() if is_input else QueueOutput(mail, PEER, "out")
        runner = LocalRunner(job, {"in": source}, {"out": target}, account)
        with pytest.raises(RuntimeError, match="must use the store of the node's queues"):
            await runner.run()
        # Nothing was settled, not even in part.
        assert len(await account.read(lambda it: JobStore(it, JOB).deliveries())) == 1
        assert len(await mail.read(query.peek_queue, QUEUE, 9)) == 1
        assert await account.read(query.peek_outbox, PEER, 9) == []
