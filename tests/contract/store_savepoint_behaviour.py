"""What every store does with transactions of users, and when a commit fails."""

from __future__ import annotations

import asyncio

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import (
    OutboxFullError,
    StoreUnavailableError,
    TransactionAbortedError,
    UsageError,
)
from postroad.durable import DurableQueuesConfig, Store
from postroad.durable.store.mutations import FunctionMutation
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.store_tables import StoreTables
from tests.contract.store_behaviour import Place, bodies, keep, make_table, rows
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.nodes import OWN, PEER, QUEUE, once, opened, post, posting_of, raising


class TurnBehaviour:
    """Statements of a user, committed with a unit or not at all."""

    async def test_statements_are_committed_with_a_unit(self, store: Store, place: Place) -> None:
        turn = await store.begin_transaction()
        await turn.execute(f"INSERT INTO mine VALUES ({place.mark})", (1,))
        assert await turn.execute("SELECT x FROM mine") == [(1,)]
        await keep(turn, b"paid")
        assert await rows(store) == [1]
        assert await bodies(store) == [b"paid"]

    async def test_nobody_sees_statements_before_a_commit(self, store: Store, place: Place) -> None:
        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")
        if place.reads_beside:
            assert await rows(store) == []
        turn.finish(None)
        assert await rows(store) == []

    async def test_a_turn_that_ends_badly_undoes_its_statements(self, store: Store) -> None:
        turn = await store.begin_transaction()
        other = posting_of(PEER, b"other")
        store.submit(other)
        await turn.execute("INSERT INTO mine VALUES (1)")
        turn.finish(None)
        await other.done
        assert await rows(store) == []
        assert await bodies(store) == [b"other"]

    async def test_a_unit_that_is_refused_undoes_the_statements(self, place: Place) -> None:
        config = DurableQueuesConfig(outbox_messages_max=1)
        async with opened(place.store(), config=config) as store:
            await make_table(store)
            turn = await store.begin_transaction()
            await turn.execute("INSERT INTO mine VALUES (1)")
            posting = posting_of(PEER, b"1", b"2")
            turn.finish(posting)
            with pytest.raises(OutboxFullError):
                await posting.done
            assert await rows(store) == []
            # The peer was new to the store, and is still.
            await post(store, PEER, b"3")
            assert await bodies(store) == [b"3"]

    async def test_turns_follow_one_another(self, store: Store, place: Place) -> None:
        async def count() -> None:
            turn = await store.begin_transaction()
            ((number,),) = await turn.execute("SELECT COUNT(*) FROM mine")
            await turn.execute(f"INSERT INTO mine VALUES ({place.mark})", (number,))
            await keep(turn)

        await asyncio.gather(*(count() for _ in range(10)))
        assert sorted(await rows(store)) == list(range(10))

    async def test_what_was_submitted_before_a_turn_comes_before_it(self, store: Store) -> None:
        order: list[str] = []

        def note(what: str) -> FunctionMutation[None]:
            return FunctionMutation(lambda ledger: order.append(what))

        first = await store.begin_transaction()
        before, after = note("before"), note("after")
        begin = asyncio.create_task(store.begin_transaction())
        await asyncio.sleep(0)
        # It comes later than the wish for the second turn, and sooner than that turn.
        store.submit(before)
        first.finish(None)
        second = await begin
        store.submit(after)
        inside = note("inside")
        second.finish(inside)
        await asyncio.gather(before.done, inside.done, after.done)
        assert order == ["before", "inside", "after"]

    async def test_statements_begun_together_are_of_one_turn(
        self, store: Store, place: Place
    ) -> None:
        turn = await store.begin_transaction()
        insert = f"INSERT INTO mine VALUES ({place.mark})"
        await asyncio.gather(*(turn.execute(insert, (number,)) for number in range(5)))
        await keep(turn)
        assert await rows(store) == list(range(5))

    async def test_a_turn_that_takes_too_long_is_lost(self, place: Place) -> None:
        config = DurableQueuesConfig(transaction_timeout_s=0.05)
        async with opened(place.store(), config=config) as store:
            await make_table(store)
            turn = await store.begin_transaction()
            await turn.execute("INSERT INTO mine VALUES (1)")
            await post(store, PEER, b"others go on")
            assert turn.is_timed_out
            with pytest.raises(TransactionAbortedError):
                await turn.execute("SELECT 1")
            with pytest.raises(TransactionAbortedError, match="too long"):
                turn.finish(posting_of(PEER, b"too late"))
            assert await rows(store) == []
            assert await bodies(store) == [b"others go on"]

    async def test_a_turn_that_has_ended_does_nothing_more(self, store: Store) -> None:
        turn = await store.begin_transaction()
        turn.finish(None)
        with pytest.raises(TransactionAbortedError, match="over"):
            await turn.execute("SELECT 1")
        for call in (turn.call, turn.call_with_session):
            with pytest.raises(TransactionAbortedError, match="over"):
                await call(lambda connection: None)

    async def test_giving_up_waiting_for_a_turn_keeps_nobody_waiting(self, store: Store) -> None:
        first = await store.begin_transaction()
        waiting = asyncio.create_task(store.begin_transaction())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        first.finish(None)
        await post(store, PEER, b"1")
        assert await bodies(store) == [b"1"]

    async def test_a_wrong_statement_raises_where_it_is(self, store: Store) -> None:
        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(Exception, match="nowhere"):
            await turn.execute("SELECT x FROM nowhere")
        turn.finish(None)
        assert await rows(store) == []

    async def test_a_failure_that_is_overlooked_commits_all_or_nothing(self, store: Store) -> None:
        await post(store, PEER, b"before")
        turn = await store.begin_transaction()
        beside = posting_of(PEER, b"beside")
        store.submit(beside)
        await turn.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(Exception, match=r"(?i)unique"):
            await turn.execute("INSERT INTO mine VALUES (1)")
        posting = posting_of(PEER, b"with 1")
        turn.finish(posting)
        await asyncio.wait((posting.done,), timeout=DEADLINE_S)
        await beside.done
        is_done = posting.done.exception() is None
        assert await rows(store) == ([1] if is_done else [])
        assert (b"with 1" in await bodies(store)) is is_done
        assert b"beside" in await bodies(store)

    async def test_a_statement_that_fails_undoes_only_itself(self, store: Store) -> None:
        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(Exception, match=r"(?i)unique"):
            await turn.execute("INSERT INTO mine VALUES (1)")
        await turn.execute("INSERT INTO mine VALUES (2)")
        await keep(turn)
        assert await rows(store) == [1, 2]

    async def test_no_statement_ends_the_commit_of_others(self, store: Store) -> None:
        turn = await store.begin_transaction()
        beside = posting_of(PEER, b"beside")
        store.submit(beside)
        await turn.execute("INSERT INTO mine VALUES (1)")
        for statement in ("COMMIT", "/* now */ rollback", ";BEGIN", "END"):
            with pytest.raises(UsageError, match="shares with others"):
                await turn.execute(statement)
                pytest.fail(f"{statement} was let through")
        # None was run, so the others of the turn still count.
        await turn.execute("INSERT INTO mine VALUES (2)")
        posting = posting_of(PEER, b"with them")
        turn.finish(posting)
        await asyncio.gather(posting.done, beside.done)
        assert await rows(store) == [1, 2]
        assert sorted(await bodies(store)) == [b"beside", b"with them"]

    async def test_a_second_statement_does_not_come_along(self, store: Store) -> None:
        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(Exception, match=r"one statement|multiple commands"):
            await turn.execute("INSERT INTO mine VALUES (2); COMMIT")
        turn.finish(None)
        assert await rows(store) == []

    async def test_broken_unit_is_not_repeated_without_its_statements(self, store: Store) -> None:
        applied: list[str] = []

        def break_down(ledger: StoreTables) -> None:
            applied.append("broken")
            raise ZeroDivisionError

        turn = await store.begin_transaction()
        beside = posting_of(PEER, b"beside")
        store.submit(beside)
        await turn.execute("INSERT INTO mine VALUES (1)")
        broken = FunctionMutation(break_down)
        turn.finish(broken)
        with pytest.raises(ZeroDivisionError):
            await broken.done
        await beside.done
        assert applied == ["broken"]
        assert await rows(store) == []
        assert await bodies(store) == [b"beside"]
        # The connection is as good as before.
        await post(store, PEER, b"after")
        assert await bodies(store) == [b"beside", b"after"]

    async def test_a_unit_beside_a_turn_that_breaks_is_told(self, store: Store) -> None:
        def break_down(ledger: StoreTables) -> None:
            raise ZeroDivisionError

        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")
        broken, beside = FunctionMutation(break_down), posting_of(PEER, b"beside")
        for unit in (broken, beside):
            store.submit(unit)
        posting = posting_of(PEER, b"with 1")
        turn.finish(posting)
        _, waiting = await asyncio.wait(
            (posting.done, broken.done, beside.done), timeout=DEADLINE_S
        )
        assert not waiting
        assert isinstance(broken.done.exception(), ZeroDivisionError)
        assert beside.done.exception() is None
        # Statements cannot be repeated: whoever ran them is told, and may begin again.
        assert isinstance(posting.done.exception(), ZeroDivisionError)
        assert await rows(store) == []
        assert await bodies(store) == [b"beside"]


class FailureBehaviour:
    """A commit that fails leaves everything as it was, and one that happened counts."""

    async def test_a_commit_that_fails_changes_nothing(self, store: Store) -> None:
        await post(store, PEER, b"1")
        failure = once(raising(StoreUnavailableError("away")))
        with faults.arm_fault_point("durable.commit.before", failure):
            with pytest.raises(StoreUnavailableError, match="away"):
                await post(store, PEER, b"lost", idempotency_key="once")
            assert await bodies(store) == [b"1"]
            await post(store, PEER, b"2", idempotency_key="once")
        assert await bodies(store) == [b"1", b"2"]
        peer = await store.read(query.find_peer, PEER)
        assert peer is not None
        assert peer.last_seq == 2

    async def test_peers_and_queues_of_a_failed_commit_are_new_again(self, store: Store) -> None:
        with faults.arm_fault_point(
            "durable.commit.before", once(raising(StoreUnavailableError("away")))
        ):
            with pytest.raises(StoreUnavailableError):
                await asyncio.gather(post(store, PEER, b"1"), post(store, OWN, b"1"))
            await asyncio.gather(post(store, PEER, b"2"), post(store, OWN, b"2"))
        assert await bodies(store) == [b"2"]
        own = await store.read(query.peek_queue, QUEUE, 10)
        assert [letter.body for letter in own] == [b"2"]

    @pytest.mark.parametrize(
        "error", [StoreUnavailableError("away"), ZeroDivisionError()], ids=repr
    )
    async def test_a_commit_whose_answer_is_lost_happened_once(
        self, store: Store, error: Exception
    ) -> None:
        told: list[int] = []
        store.commit_listeners.add(
            lambda news: told.extend(page.last for _, page in news.outbox_batches)
        )
        with faults.arm_fault_point("durable.commit.after", once(raising(error))):
            await asyncio.gather(post(store, PEER, b"1"), post(store, PEER, b"2"))
        assert await bodies(store) == [b"1", b"2"]
        await post(store, PEER, b"3")
        assert await bodies(store) == [b"1", b"2", b"3"]
        assert told == [2, 3]

    async def test_statements_whose_commit_fails_are_undone(self, store: Store) -> None:
        with faults.arm_fault_point(
            "durable.commit.before", once(raising(StoreUnavailableError("away")))
        ):
            turn = await store.begin_transaction()
            await turn.execute("INSERT INTO mine VALUES (1)")
            posting = posting_of(PEER, b"1")
            turn.finish(posting)
            with pytest.raises(StoreUnavailableError):
                await posting.done
        assert await rows(store) == []
        assert await bodies(store) == []

    async def test_a_store_closes_after_a_failure(self, place: Place) -> None:
        def fail(**details: object) -> None:
            raise StoreUnavailableError("away")

        async with opened(place.store()) as store:
            posting = posting_of(PEER, b"1")
            with faults.arm_fault_point("durable.commit.before", fail):
                store.submit(posting)
                await store.close()
                with pytest.raises(StoreUnavailableError):
                    await posting.done
        async with opened(place.store()) as store:
            assert await bodies(store) == []
