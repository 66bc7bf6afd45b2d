"""What every store does with functions of users that work on its connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from postroad.core.errors import TransactionAbortedError, UsageError
from postroad.durable import DurableQueuesConfig, Store, Transaction
from postroad.durable.producer import MessageEncoder
from tests.contract.store_behaviour import Place, bodies, keep, make_table, rows
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.durable.nodes import PEER, opened, post, posting_of


def insert(connection: Any, number: int) -> None:
    connection.execute(f"INSERT INTO mine VALUES ({number})")


def enter(connection: Any) -> None:
    with connection:
        insert(connection, 1_000)


def set_autocommit(connection: Any) -> None:
    connection.autocommit = True


def set_isolation_level(connection: Any) -> None:
    connection.isolation_level = None


REFUSED: dict[str, Callable[[Any], object]] = {
    "commit()": lambda connection: connection.commit(),
    "rollback()": lambda connection: connection.rollback(),
    "close()": lambda connection: connection.close(),
    "with": enter,
    "autocommit": set_autocommit,
    "isolation_level": set_isolation_level,
    "COMMIT": lambda connection: connection.execute("COMMIT"),
    "; rollback": lambda connection: connection.cursor().execute("; rollback"),
    "SAVEPOINT": lambda connection: connection.execute("SAVEPOINT mine"),
    "executemany": lambda connection: connection.executemany("RELEASE mine", [()]),
}
# Those of one driver.
REFUSED_BY_NAME = {
    "?": ("backup", "deserialize", "executescript", "iterdump", "set_authorizer"),
    "%s": ("cancel", "pipeline", "set_autocommit", "tpc_begin", "transaction"),
}


class LendingBehaviour:
    """A function works on the connection, and what it does is the transaction's."""

    async def test_what_a_function_did_is_committed_with_it(
        self, store: Store, place: Place
    ) -> None:
        def work(connection: Any) -> list[Any]:
            cursor = connection.cursor()
            cursor.execute(f"INSERT INTO mine VALUES ({place.mark})", (1,))
            insert_row = f"INSERT INTO mine VALUES ({place.mark})"
            cursor.executemany(insert_row, [(2,), (3,)])
            assert cursor.connection is connection
            found = connection.execute("SELECT x FROM mine ORDER BY x")
            return [found.fetchone(), *found.fetchmany(1), *found]

        turn = await store.begin_transaction()
        assert await turn.call(work) == [(1,), (2,), (3,)]
        await keep(turn, b"with them")
        assert await rows(store) == [1, 2, 3]
        assert await bodies(store) == [b"with them"]

    async def test_a_turn_that_ends_badly_undoes_what_a_function_did(self, store: Store) -> None:
        turn = await store.begin_transaction()
        await turn.call(lambda connection: insert(connection, 1))
        turn.finish(None)
        assert await rows(store) == []

    async def test_calls_and_statements_of_one_turn_follow_one_another(self, store: Store) -> None:
        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")

        def count(connection: Any) -> int:
            ((number,),) = connection.execute("SELECT COUNT(*) FROM mine").fetchall()
            insert(connection, number + 1)
            return int(number)

        assert tuple(await asyncio.gather(turn.call(count), turn.call(count))) == (1, 2)
        assert await turn.execute("SELECT COUNT(*) FROM mine") == [(3,)]
        await keep(turn)
        assert await rows(store) == [1, 2, 3]

    async def test_a_function_that_raises_undoes_only_itself(self, store: Store) -> None:
        turn = await store.begin_transaction()
        await turn.call(lambda connection: insert(connection, 1))

        def fail(connection: Any) -> None:
            insert(connection, 2)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await turn.call(fail)
        await turn.call(lambda connection: insert(connection, 3))
        await keep(turn)
        assert await rows(store) == [1, 3]

    async def test_a_function_goes_on_after_a_statement_that_failed(self, store: Store) -> None:
        def insert_twice(connection: Any) -> None:
            insert(connection, 1)
            # Every driver has its errors on the connection too.
            with pytest.raises(connection.IntegrityError):
                insert(connection, 1)
            insert(connection, 2)

        turn = await store.begin_transaction()
        await turn.call(insert_twice)
        with pytest.raises(Exception, match=r"(?i)unique"):
            await turn.call(lambda connection: insert(connection, 2))
        await turn.call(lambda connection: insert(connection, 3))
        await keep(turn)
        assert await rows(store) == [1, 2, 3]

    async def test_no_function_ends_the_commit_of_others(self, store: Store) -> None:
        turn = await store.begin_transaction()
        beside = posting_of(PEER, b"beside")
        store.submit(beside)

        def try_it(connection: Any) -> None:
            for number, (name, refused) in enumerate(REFUSED.items()):
                insert(connection, 2 * number)
                with pytest.raises(UsageError):
                    refused(connection)
                    pytest.fail(f"{name} was let through")
                insert(connection, 2 * number + 1)

        await turn.call(try_it)
        turn.finish(None)
        await beside.done
        assert await rows(store) == []
        assert await bodies(store) == [b"beside"]

    async def test_what_else_drivers_offer_is_refused(self, store: Store, place: Place) -> None:
        def try_all(connection: Any) -> None:
            insert(connection, 1)
            for name in REFUSED_BY_NAME[place.mark]:
                assert hasattr(connection, name)
                with pytest.raises(UsageError, match=name):
                    getattr(connection, name)()
            assert not hasattr(connection, "nothing_like_this")

        turn = await store.begin_transaction()
        await turn.call(try_all)
        with pytest.raises(UsageError, match=r"commit\(\) is not .* return from the function"):
            await turn.call(lambda connection: connection.commit())
        with pytest.raises(Exception, match=r"one statement|multiple commands"):
            await turn.call(lambda connection: connection.execute("SELECT 1; COMMIT"))
        turn.finish(None)
        assert await rows(store) == []

    async def test_a_connection_is_of_no_use_after_its_call(self, store: Store) -> None:
        def keep_all(connection: Any) -> tuple[Any, Any, Iterator[Any]]:
            insert(connection, 1)
            cursor = connection.execute("SELECT x FROM mine")
            return connection, cursor, iter(connection.execute("SELECT x FROM mine"))

        turn = await store.begin_transaction()
        connection, cursor, iterator = await turn.call(keep_all)
        uses: list[Callable[[], object]] = [
            lambda: connection.cursor(),
            lambda: connection.execute("SELECT 1"),
            lambda: connection.commit(),
            lambda: connection.row_factory,
            lambda: connection.IntegrityError,
            lambda: setattr(connection, "row_factory", None),
            lambda: cursor.fetchone(),
            lambda: cursor.fetchall(),
            lambda: cursor.execute("SELECT 1"),
            lambda: cursor.description,
            lambda: cursor.connection,
            lambda: cursor.close(),
            lambda: setattr(cursor, "arraysize", 2),
        ]
        for use in uses:
            with pytest.raises(UsageError, match="has ended"):
                use()
        for rows_left in (cursor, iterator):
            with pytest.raises(Exception, match=r"has ended|closed"):
                next(rows_left)
        await keep(turn)
        assert await rows(store) == [1]

    async def test_connection_used_by_another_thread_is_refused(self, store: Store) -> None:
        def hand_over(connection: Any) -> None:
            cursor = connection.execute("SELECT x FROM mine")
            uses: list[Callable[[], object]] = [connection.cursor, lambda: cursor.fetchone()]
            uses.append(lambda: insert(connection, 2))
            with ThreadPoolExecutor(1) as other:
                for use in uses:
                    with pytest.raises(UsageError, match="another thread"):
                        other.submit(use).result()
            insert(connection, 1)

        turn = await store.begin_transaction()
        await turn.call(hand_over)
        await keep(turn)
        assert await rows(store) == [1]

    async def test_cursors_that_are_left_open_harm_nobody(self, store: Store) -> None:
        left: list[Any] = []

        def leave(connection: Any) -> None:
            for number in (1, 2, 3):
                insert(connection, number)
            reading = connection.execute("SELECT x FROM mine")
            reading.fetchone()
            writing = connection.cursor()
            writing.execute("INSERT INTO mine VALUES (4), (5) RETURNING x")
            left.extend((reading, writing))

        turn = await store.begin_transaction()
        await turn.call(leave)
        await turn.execute("INSERT INTO mine VALUES (6)")
        await keep(turn)
        assert await rows(store) == [1, 2, 3, 4, 5, 6]
        assert len(left) == 2

    async def test_a_way_to_make_rows_is_kept_to_its_call(self, store: Store) -> None:
        def make_lists(connection: Any) -> list[Any]:
            usual = connection.row_factory
            connection.row_factory = lambda cursor, row=None: list(row) if row else list
            assert connection.row_factory is not usual
            insert(connection, 1)
            return [type(row) for row in connection.execute("SELECT x FROM mine").fetchall()]

        turn = await store.begin_transaction()
        assert await turn.call(make_lists) == [list]
        assert await turn.execute("SELECT x FROM mine") == [(1,)]
        await keep(turn)
        assert await bodies(store) == []

    async def test_a_caller_that_gives_up_leaves_nothing_running(self, store: Store) -> None:
        is_inside, goes_on = threading.Event(), threading.Event()
        heard: list[type[BaseException]] = []

        def work(connection: Any) -> None:
            insert(connection, 1)
            is_inside.set()
            goes_on.wait(DEADLINE_S)
            try:
                insert(connection, 2)
            except BaseException as error:
                heard.append(type(error))
                raise

        turn = await store.begin_transaction()
        calling = asyncio.create_task(turn.call(work))
        await asyncio.to_thread(is_inside.wait, DEADLINE_S)
        waiting = asyncio.create_task(turn.call(lambda connection: insert(connection, 3)))
        beside = posting_of(PEER, b"beside")
        store.submit(beside)
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        turn.finish(None)
        await asyncio.sleep(0)
        assert not beside.done.done()
        goes_on.set()
        await beside.done
        with pytest.raises(TransactionAbortedError):
            await waiting
        assert heard == [TransactionAbortedError]
        assert await rows(store) == []

    async def test_a_function_that_takes_too_long_is_lost(self, place: Place) -> None:
        goes_on = threading.Event()

        def work(connection: Any) -> None:
            insert(connection, 1)
            goes_on.wait(DEADLINE_S)
            insert(connection, 2)

        async with opened(
            place.store(), config=DurableQueuesConfig(transaction_timeout_s=0.05)
        ) as store:
            await make_table(store)
            turn = await store.begin_transaction()
            calling = asyncio.create_task(turn.call(work))
            await eventually(lambda: turn.is_timed_out, "the turn is lost")
            goes_on.set()
            with pytest.raises(TransactionAbortedError):
                await calling
            await post(store, PEER, b"others go on")
            assert await rows(store) == []

    async def test_a_function_runs_in_the_context_of_its_caller(self, store: Store) -> None:
        who: ContextVar[str] = ContextVar("who", default="nobody")
        who.set("somebody")
        turn = await store.begin_transaction()
        assert await turn.call(lambda connection: who.get()) == "somebody"
        turn.finish(None)

    async def test_no_exception_of_a_function_is_lost(self, store: Store) -> None:
        turn = await store.begin_transaction()
        with pytest.raises(RuntimeError, match="StopIteration"):
            async with asyncio.timeout(DEADLINE_S):
                await turn.call(lambda connection: next(iter(())))
        turn.finish(None)

    async def test_a_transaction_runs_functions_with_arguments(self, store: Store) -> None:
        tx = Transaction(store, MessageEncoder(DurableQueuesConfig(), "alpha"))

        def add(connection: Any, *numbers: int, also: int) -> int:
            for number in (*numbers, also):
                insert(connection, number)
            return len(numbers) + 1

        assert await tx.run_sync(add, 1, 2, also=3) == 3
        assert await tx.execute("SELECT COUNT(*) FROM mine") == [(3,)]
        turn = tx.close()
        assert turn is not None
        await keep(turn)
        assert await rows(store) == [1, 2, 3]
        with pytest.raises(UsageError, match="over"):
            await tx.run_sync(add, also=4)

    async def test_a_coroutine_function_is_no_function(self, store: Store) -> None:
        tx = Transaction(store, MessageEncoder(DurableQueuesConfig(), "alpha"))

        async def work(connection: Any) -> None:
            raise AssertionError

        for run in (tx.run_sync, tx.run_in_session):
            with pytest.raises(UsageError, match=r"await tx\.execute"):
                _ = await run(work)
        # Nobody had to wait for it.
        assert tx.close_if_unused()
