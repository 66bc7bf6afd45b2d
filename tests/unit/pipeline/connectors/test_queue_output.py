"""What becomes of segments that a job posts to a queue."""

from __future__ import annotations

import asyncio
import pickle

import msgspec
import pytest

from postroad.core.errors import ConfigError
from postroad.durable import DurableQueuesConfig, MemoryStore, Store
from postroad.durable.names import KEY_BYTES_MAX
from postroad.durable.store.tables import queries as query
from postroad.pipeline import LocalRunner, MemoryInput, QueueOutput, Segment, Task, make_output
from postroad.pipeline.connectors import Committable, UnwritableSegmentsError, make_input
from postroad.pipeline.job import TaskType
from tests.support.durable.nodes import PEER, opened, post
from tests.support.pipeline.desk_jobs import input_task, job_of
from tests.unit.pipeline.connectors.queue_stores import NODE

RESULTS = "results"


def stage(connector: QueueOutput, *segments: Segment, ids: list[int] | None = None) -> Committable:
    stager = connector.create_writer("stage")
    stager.write(ids or list(range(len(segments))), segments)
    staged = stager.prepare_commit()
    assert staged is not None
    return staged


async def settle(store: Store, connector: QueueOutput, staged: Committable) -> None:
    assert await store.write(lambda ledger: connector.commit_in_transaction(ledger, staged)) is None


async def test_a_message_has_the_id_of_the_output_and_no_more_bits_than_it_may() -> None:
    async with opened(MemoryStore(), NODE) as store:
        connector = QueueOutput(store, PEER, RESULTS)
        await settle(store, connector, stage(connector, {"n": 1}, {"n": 2}, ids=[5, (1 << 64) - 1]))
        first, second = await store.read(query.peek_outbox, PEER, 10)
    assert (first.id, second.id) == (5, (1 << 63) - 1)
    assert (first.queue, first.body, first.key) == (RESULTS, b'{"n":1}', None)
    assert first.sent_ms > 1_600_000_000_000


async def test_messages_are_bound_to_pages_of_the_size_that_the_node_wants() -> None:
    config = DurableQueuesConfig(batch_messages_max=4)
    async with opened(MemoryStore(), NODE, config) as store:
        connector = QueueOutput(store, PEER, RESULTS)
        await connector.open("job+", [])
        # As in the process that does the work.
        copy: QueueOutput = pickle.loads(pickle.dumps(connector))
        staged = stage(copy, *({"n": n} for n in range(10)))
        await settle(store, connector, msgspec.msgpack.decode(msgspec.msgpack.encode(staged)))
        pages = await store.read(query.read_outbox_batches, 1, 0, 10)
    assert [(it.first, it.last) for it in pages] == [(1, 4), (5, 8), (9, 10)]


async def test_what_is_too_large_for_a_message_is_refused() -> None:
    async with opened(MemoryStore(), NODE, DurableQueuesConfig(message_bytes_max=100)) as store:
        connector = QueueOutput(store, PEER, RESULTS)
        await connector.open("job+", [])
        stager = connector.create_writer("stage")
        with pytest.raises(UnwritableSegmentsError) as refused:
            stager.write([1, 2, 3], [{"n": 1}, {"text": "x" * 100}, {"n": 3}])
        (reason,) = refused.value.reasons.values()
        assert list(refused.value.reasons) == [2]
        assert reason.startswith("the message takes 1")
        assert reason.endswith("message_bytes_max is 100")
        assert stager.prepare_commit() is None


async def test_messages_may_have_keys() -> None:
    async with opened(MemoryStore(), NODE) as store:
        connector = QueueOutput(store, PEER, RESULTS, codec="msgpack", key="account")
        await settle(store, connector, stage(connector, {"account": 7}, {"account": "x"}, {"n": 1}))
        found = await store.read(query.peek_outbox, PEER, 10)
    assert [it.key for it in found] == ["7", "x", None]
    assert msgspec.msgpack.decode(found[0].body) == {"account": 7}


async def test_what_cannot_be_a_key_is_refused() -> None:
    for key in ("x" * (KEY_BYTES_MAX + 1), "\0", "\ud800"):
        connector = QueueOutput(MemoryStore(), PEER, RESULTS, codec="msgpack", key="account")
        with pytest.raises(UnwritableSegmentsError) as refused:
            connector.create_writer("stage").write([1, 2], [{"n": 1}, {"account": key}])
        assert list(refused.value.reasons) == [2], key


async def test_a_full_outbox_takes_no_more_until_there_is_room() -> None:
    async with opened(MemoryStore(), NODE, DurableQueuesConfig(outbox_messages_max=3)) as store:
        connector = QueueOutput(store, PEER, RESULTS)
        await connector.open("job+", [])
        await post(store, PEER, b"1", b"2")
        staged = stage(connector, {"n": 1}, {"n": 2})
        # What is staged is posted, though that is more than it keeps.
        await settle(store, connector, staged)
        with pytest.raises(OSError, match="outbox of 'beta' is full: it has 4 messages"):
            connector.create_writer("stage")
        own, other = QueueOutput(store, NODE, RESULTS), QueueOutput(store, "gamma", RESULTS)
        stage(own, {"n": 1})
        stage(other, {"n": 1})
        pages = await store.read(query.read_outbox_batches, 1, 0, 10)
        last = pages[-1]
        await store.write(
            lambda ledger: ledger.outbox.ack(PEER, 1, last.last, last.chain, (), ledger.now_ms)
        )
        stage(connector, {"n": 3})


async def test_a_job_waits_for_room_in_the_outbox() -> None:
    config = DurableQueuesConfig(outbox_messages_max=5)
    async with opened(MemoryStore(), NODE, config) as store:
        inputs = {"in": MemoryInput({"n": n} for n in range(20))}
        outputs = {"out": QueueOutput(store, PEER, RESULTS)}
        job = job_of(input_task(batch_size=4))
        running = asyncio.create_task(LocalRunner(job, inputs, outputs, store).run())
        waiting = {0}
        async with asyncio.timeout(20):
            while not running.done():
                peer = await store.read(query.find_peer, PEER)
                if peer is not None and peer.last_seq > peer.acked_seq:
                    waiting.add(peer.last_seq - peer.acked_seq)
                    await store.write(
                        lambda ledger, it=peer: ledger.outbox.ack(  # type: ignore[misc]
                            PEER, 1, it.last_seq, it.last_chain, (), ledger.now_ms
                        )
                    )
                await asyncio.sleep(0.001)
            await running
        peer = await store.read(query.find_peer, PEER)
    assert peer is not None
    assert peer.last_seq == 20
    assert max(waiting) <= 8


@pytest.mark.parametrize(
    ("option", "value"),
    [("queue", ""), ("queue", "a b"), ("peer", ""), ("peer", "no node"), ("codec", "xml"),
     ("key", 7)],
)  # fmt: skip
def test_wrong_options_are_named(option: str, value: object) -> None:
    options: dict[str, object] = {"peer": PEER, "queue": RESULTS} | {option: value}
    with pytest.raises(ConfigError, match=option):
        QueueOutput(MemoryStore(), **options)  # type: ignore[arg-type]


# Jobs from files.


def test_queues_are_media_of_a_node() -> None:
    source = Task(name="in", type=TaskType.INPUT, connector="queue", options={"queue": "payments"})
    target = Task(
        name="out",
        type=TaskType.OUTPUT,
        connector="queue",
        options={"peer": PEER, "queue": RESULTS},
    )
    with pytest.raises(
        ConfigError, match=r"^task 'in' reads a queue of a node: run the job in one$"
    ):
        make_input(source)
    with pytest.raises(
        ConfigError, match=r"^task 'out' sends to a queue of a node: run the job in one$"
    ):
        make_output(target)
    store = MemoryStore()
    assert not make_input(source, store).is_portable
    assert isinstance(make_output(target, store), QueueOutput)
    wrong = msgspec.structs.replace(source, options={"queue": "payments", "mail": 1})
    with pytest.raises(ConfigError, match="options of 'in' do not suit 'queue'"):
        make_input(wrong, store)
