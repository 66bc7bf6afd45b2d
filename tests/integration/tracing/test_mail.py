"""Spans of mail, which may wait for long, and of jobs that read it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from postroad.core import tracing
from postroad.core.errors import ConfigError
from postroad.core.tracing import SpanKind
from postroad.durable import Message, OutgoingMessage, Transaction
from postroad.node.tracing import Recorder
from postroad.pipeline import LocalRunner, MemoryOutput, QueueInput
from postroad.pipeline.job import Job, Task, TaskType
from tests.support.durable.mail_pairs import AT_ONCE, running_pair, running_station

from .traces import begun, recording


async def test_handling_is_part_of_posting(tmp_path: Path) -> None:
    async with recording("alpha", "beta") as traces, running_pair(tmp_path) as (alpha, beta):
        with begun("alpha"):
            await alpha.mail.send("orders", b"tea", to="beta", headers={"h": "1"})
        handled = asyncio.Event()

        async def handle(message: Message, tx: Transaction) -> None:
            assert message.headers["h"] == "1"
            tx.send("bills", b"5", to="alpha")
            await alpha.mail.send("notes", b"", to="alpha")
            handled.set()

        await beta.mail.consume("orders", handle)
        await asyncio.wait_for(handled.wait(), 10)
        await traces.until("durable: handle orders @beta")
        posted, came, _ = traces.line(
            "durable: post orders @alpha",
            "durable: handle orders @beta",
            "durable: post bills @beta",
        )
        traces.line("test: begin @alpha", "durable: post orders @alpha")
        assert (posted.kind, came.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert (posted.peer, came.peer) == ("beta", "alpha")
        traces.line("durable: handle orders @beta", "durable: post notes @alpha")
        assert not [it for it in traces.all() if it.layer == "net"], "bridges do that for all"


async def test_mail_that_waited_for_another_process(tmp_path: Path) -> None:
    """A letter knows its span for as long as it is on the disk."""
    async with Recorder("alpha") as first, running_station("alpha", tmp_path) as alpha:
        await alpha.mail.send("orders", b"tea", to="alpha")
    (posted,) = first.recent()
    async with Recorder("alpha") as second, running_station("alpha", tmp_path) as alpha:
        handled = asyncio.Event()
        await alpha.mail.consume("orders", lambda message, tx: handled.set())
        await asyncio.wait_for(handled.wait(), 10)
    (came,) = second.recent()
    assert (came.trace_id, came.parent_id) == (posted.trace_id, posted.span_id)


async def test_every_attempt_is_a_span(tmp_path: Path) -> None:
    async with recording("alpha") as traces, running_station("alpha", tmp_path) as alpha:
        done = asyncio.Event()

        async def handle(message: Message, tx: Transaction) -> None:
            if message.attempt < 3:
                raise ConfigError("not yet")
            done.set()

        await alpha.mail.send("orders", b"tea", to="alpha")
        await alpha.mail.consume("orders", handle, retry=AT_ONCE)
        await asyncio.wait_for(done.wait(), 10)
        attempts = [it for it in traces.all() if it.kind is SpanKind.CONSUMER]
        assert [it.attributes["attempt"] for it in attempts] == [1, 2, 3]
        assert [it.code for it in attempts] == [ConfigError.code, ConfigError.code, 0]
        assert len({it.parent_id for it in attempts}) == 1


async def test_mail_that_is_pulled(tmp_path: Path) -> None:
    async with recording("alpha") as traces, running_station("alpha", tmp_path) as alpha:
        await alpha.mail.send_many(
            OutgoingMessage(to="alpha", queue="orders", body=b"%d" % number) for number in range(2)
        )
        good, bad = await alpha.mail.pull("orders", limit=2, retry=AT_ONCE)
        await good.ack()
        bad.nack("no tea")
        pulled = [it for it in traces.all() if it.kind is SpanKind.CONSUMER]
        assert [it.error for it in pulled] == [None, "NackedError: no tea"]
        posted = {it.span_id for it in traces.all() if it.kind is SpanKind.PRODUCER}
        assert {it.parent_id for it in pulled} == posted and len(posted) == 2


async def test_a_reply_is_part_of_the_handling(tmp_path: Path) -> None:
    async with recording("alpha", "beta") as traces, running_pair(tmp_path) as (alpha, beta):

        async def handle(message: Message, tx: Transaction) -> None:
            tx.reply(message, b"5")

        await beta.mail.consume("prices", handle)
        assert (await alpha.mail.request("prices", b"tea", to="beta", timeout=10)).body == b"5"
        await traces.until("durable: handle _replies @alpha")
        traces.line(
            "durable: post prices @alpha",
            "durable: handle prices @beta",
            "durable: post _replies @beta",
            "durable: handle _replies @alpha",
        )


async def test_posting_again_with_the_same_key(tmp_path: Path) -> None:
    async with recording("alpha"), running_station("alpha", tmp_path) as alpha:
        ids = {
            await alpha.mail.send("orders", b"tea", to="alpha", idempotency_key="k")
            for _ in range(3)
        }
        assert len(ids) == 1


# Jobs.


COPY = Job(
    name="copy",
    workflow=[("in", "out")],
    catalog=[
        Task(name="in", type=TaskType.INPUT, connector="queue"),
        Task(name="out", type=TaskType.OUTPUT, connector="memory"),
    ],
)


async def test_a_batch_is_a_span_with_links_to_the_letters_in_it(tmp_path: Path) -> None:
    async with recording("alpha") as traces, running_station("alpha", tmp_path) as alpha:
        for number in range(40):
            await alpha.mail.send("orders", b'{"n": %d}' % number, to="alpha")
        output = MemoryOutput()
        inputs = {"in": QueueInput(alpha.mail, "orders", bounded=True)}
        await LocalRunner(COPY, inputs, {"out": output}, alpha.mail.store).run()
        posted = [it for it in traces.all() if it.layer == "durable"]
        batch = traces.find("pipeline: batch copy @alpha")
        assert batch.parent_id is None and batch.kind is SpanKind.CONSUMER
        assert batch.attributes == {"batch": 1, "segments": 40, "failed": 0, "settled": "now"}
        assert len(batch.links) == 32
        assert {it.trace_id for it in batch.links} <= {it.trace_id for it in posted}
        assert tracing.current_span() is None
