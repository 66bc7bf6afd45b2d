"""What scenario `durable` has found once, as small as it can be told."""

import asyncio

import msgspec
import pytest

from postroad.core.errors import StoreUnavailableError
from postroad.durable import DurableQueues, Message, OutgoingMessage, Transaction
from postroad.durable.store.tables import streams
from postroad.testing import SimCluster
from tests.simulation.durable.pair import CONFIG, DELIVERY_S, Pair
from tests.simulation.durable.process import Machine
from tests.simulation.durable.slips import CLOSED
from tests.simulation.durable.traps import Traps


class Relay:
    """A node that posts to itself, in two steps that keep the order of the key."""

    def __init__(self, sim: SimCluster, outbox_messages_max: int = 1_000) -> None:
        config = msgspec.structs.replace(CONFIG, outbox_messages_max=outbox_messages_max)
        self.sim = sim
        self.machine = Machine(sim, "solo", config, ("in", "out"), self._serve)
        self.machine.start()
        sim.run_until(lambda: self.machine.is_ready, timeout=DELIVERY_S, description="it runs")

    async def _serve(self, mail: DurableQueues) -> None:
        async with mail.transaction() as tx:
            await tx.execute("CREATE TABLE words (number INTEGER PRIMARY KEY, word TEXT)")
        await mail.consume("in", self._pass_on)
        await mail.consume("out", self._write)
        await asyncio.Event().wait()

    async def _pass_on(self, message: Message, tx: Transaction) -> None:
        if message.body == b"slow":
            await asyncio.sleep(0.1)
        if message.body == b"large" and message.attempt == 1:
            # More than there is room for.
            for _ in range(2):
                tx.send("in", b"", to="nobody")
        tx.send("out", message.body, to="solo", key="one")

    async def _write(self, message: Message, tx: Transaction) -> None:
        await tx.execute("INSERT INTO words (word) VALUES (?)", (message.body.decode(),))

    async def post(self, *words: bytes) -> None:
        mail = self.machine.mail
        assert mail is not None
        drafts = [OutgoingMessage(to="solo", queue="in", body=word, key="one") for word in words]
        await mail.send_many(drafts)

    def written(self) -> list[str]:
        rows = self.machine.disk.execute("SELECT word FROM words ORDER BY number")
        return [word for (word,) in rows]


def pause_queue(pair: Pair, *, is_paused: bool) -> None:
    mail = pair.beta.mail
    assert mail is not None
    pair.sim.run(
        mail.admin.pause("orders") if is_paused else mail.admin.resume("orders"), pair.beta.node
    )


def test_pages_that_come_after_a_restart_have_new_numbers() -> None:
    with SimCluster(1) as sim:
        pair = Pair(sim)
        pair.post("a", "b", "c")
        pair.await_handled("a", "b", "c")
        pause_queue(pair, is_paused=True)
        pair.post("d")
        sim.run_for(DELIVERY_S)
        pair.restart(pair.beta)
        pause_queue(pair, is_paused=False)
        pair.await_handled("a", "b", "c", "d")
        # The page of the last one is gone, and its number must not come again.
        pair.post("e")
        pair.await_handled("a", "b", "c", "d", "e")


def test_removal_that_fails_is_made_up_for() -> None:
    with SimCluster(2) as sim:
        pair = Pair(sim)
        pair.post("a")
        pair.alpha.disk.is_full = True
        pair.await_handled("a")
        pair.alpha.disk.is_full = False
        sim.run_until(
            lambda: pair.outbox() == 0, timeout=30.0, description="nothing waits any more"
        )


def test_refusal_is_not_lost_when_its_removal_fails() -> None:
    with SimCluster(3) as sim:
        pair = Pair(sim)
        pair.post("a")
        pair.await_handled("a")
        pair.post("b", queue=CLOSED)
        pair.alpha.disk.is_full = True
        sim.run_for(DELIVERY_S)
        pair.alpha.disk.is_full = False
        pair.post("c")
        pair.await_handled("a", "c")
        assert pair.dead() == ["b"]


@pytest.mark.parametrize("seed", range(4))
def test_refusal_is_remembered_until_its_sender_has_it_on_disk(seed: int) -> None:
    with SimCluster(seed) as sim:
        pair = Pair(sim, config=msgspec.structs.replace(CONFIG, windows_max=1))
        pair.post("a")
        pair.await_handled("a")
        # Commits take so long that the next window is sent before any removal is durable.
        pair.post("b", queue=CLOSED)
        pair.alpha.disk.sync_s = 2.0
        posting = sim.spawn(pair.mail.send("orders", b"c", to="beta"), pair.alpha.node)
        sim.run_until(posting.done, timeout=DELIVERY_S, description="c is posted")
        sim.run_for(1.0)
        pair.restart(pair.alpha)
        pair.alpha.disk.sync_s = 0.0
        pair.await_handled("a", "c")
        assert pair.dead() == ["b"]


def test_refusals_that_are_told_in_parts_are_all_dead_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_REJECTIONS_MAX", 2)
    words = ["a", "b", "c", "d", "e"]
    with SimCluster(5) as sim:
        pair = Pair(sim)
        traps = Traps(sim)
        with traps.armed():
            trap = traps.kill(pair.alpha, "durable.bridge.accepted")
            sim.network.partition("alpha", "beta")
            pair.post(*words, queue=CLOSED)
            sim.network.heal()
            sim.run_until(lambda: trap.has_fired, timeout=30.0, description="alpha dies")
        pair.alpha.start()
        sim.run_for(10.0)
        assert pair.dead() == words
        assert pair.outbox() == 0


def test_transaction_that_cannot_begin_fails_at_once() -> None:
    with SimCluster(6) as sim:
        pair = Pair(sim)

        async def write() -> None:
            async with pair.mail.transaction() as tx:
                await tx.execute("SELECT 1")

        pair.alpha.disk.is_read_only = True
        with pytest.raises(StoreUnavailableError):
            sim.run(asyncio.wait_for(write(), 60.0), pair.alpha.node)
        assert sum("the commit failed" in line for line in sim.log.lines) <= 3


def test_what_is_handled_while_a_commit_fails_does_not_overtake() -> None:
    with SimCluster(7) as sim:
        relay = Relay(sim)

        async def fail_first_commit() -> None:
            await relay.post(b"quick", b"slow")
            relay.machine.disk.sync_s = 0.5
            await asyncio.sleep(0.3)
            relay.machine.disk.is_full = True
            await asyncio.sleep(0.3)
            relay.machine.disk.is_full = False

        sim.run(fail_first_commit(), relay.machine.node)
        sim.run_for(30.0)
        assert relay.written() == ["quick", "slow"]


def test_what_follows_a_message_that_posts_too_much_does_not_overtake() -> None:
    with SimCluster(8) as sim:
        relay = Relay(sim, outbox_messages_max=1)
        sim.run(relay.post(b"large", b"small"), relay.machine.node)
        sim.run_for(30.0)
        assert relay.written() == ["large", "small"]
