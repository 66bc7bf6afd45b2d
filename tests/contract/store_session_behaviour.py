"""What every store does with functions of users that work with a session of SQLAlchemy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest
import sqlalchemy
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postroad.core.errors import MissingExtraError, UsageError
from postroad.durable import DurableQueuesConfig, Store, Transaction
from postroad.durable.producer import MessageEncoder
from tests.contract.store_behaviour import bodies, keep, rows
from tests.contract.store_lending_behaviour import insert
from tests.support.durable.nodes import PEER, posting_of


class Base(DeclarativeBase):
    """The user's own tables."""


class Mine(Base):
    """The table that `make_table` makes; SQLAlchemy wants a key."""

    __tablename__ = "mine"
    x: Mapped[int] = mapped_column(sqlalchemy.BigInteger, primary_key=True, autoincrement=False)


class Note(Base):
    """A table that a session makes."""

    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]
    kind: Mapped[str] = mapped_column(sqlalchemy.Enum("short", "long", name="kinds"))


def add(session: Session, *numbers: int) -> None:
    session.add_all(Mine(x=number) for number in numbers)


def add_one(session: Session, number: int) -> None:
    add(session, number)


def numbers_of(session: Session) -> list[int]:
    return list(session.scalars(sqlalchemy.select(Mine.x).order_by(Mine.x)))


def use_connection_below(session: Session) -> None:
    session.connection().rollback()


def use_engine_below(session: Session) -> None:
    with session.connection().engine.connect() as connection:
        connection.execute(sqlalchemy.text("INSERT INTO mine VALUES (7)"))


def commit_below(session: Session) -> None:
    session.connection().commit()


def commit_engine_below(session: Session) -> None:
    with session.connection().engine.begin() as connection:
        connection.execute(sqlalchemy.text("INSERT INTO mine VALUES (7)"))


def commit_at_once_below(session: Session) -> None:
    engine = session.connection().engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("INSERT INTO mine VALUES (7)"))


BELOW = (
    use_connection_below,
    use_engine_below,
    commit_below,
    commit_engine_below,
    commit_at_once_below,
)


class SessionBehaviour:
    """A session is part of the transaction, and never ends it."""

    async def test_what_a_session_does_is_committed_with_the_unit(self, store: Store) -> None:
        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")

        def work(session: Session) -> list[int]:
            add(session, 2, 3)
            return numbers_of(session)

        assert await turn.call_with_session(work) == [1, 2, 3]
        assert await turn.execute("SELECT COUNT(*) FROM mine") == [(3,)]
        await keep(turn, b"with them")
        assert await rows(store) == [1, 2, 3]
        assert await bodies(store) == [b"with them"]

    async def test_what_is_left_in_a_session_is_written_at_the_end(self, store: Store) -> None:
        turn = await store.begin_transaction()
        await turn.call_with_session(lambda session: add(session, 1))
        await keep(turn)
        assert await rows(store) == [1]

    async def test_a_session_commits_only_into_the_transaction(self, store: Store) -> None:
        def work(session: Session) -> None:
            add(session, 1)
            session.commit()
            with session.begin():
                add(session, 2)
            session.close()

        turn = await store.begin_transaction()
        beside = posting_of(PEER, b"beside")
        store.submit(beside)
        await turn.call_with_session(work)
        assert await turn.execute("SELECT COUNT(*) FROM mine") == [(2,)]
        turn.finish(None)
        await beside.done
        assert await rows(store) == []
        assert await bodies(store) == [b"beside"]

    async def test_a_session_undoes_what_it_did_since_its_commit(self, store: Store) -> None:
        def work(session: Session) -> None:
            add(session, 2)
            session.commit()
            add(session, 3)
            session.flush()
            session.rollback()
            add(session, 4)

        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")
        await turn.call_with_session(work)
        await keep(turn)
        assert await rows(store) == [1, 2, 4]

    async def test_a_function_that_raises_undoes_its_commits_too(self, store: Store) -> None:
        def fail(session: Session) -> None:
            add(session, 1)
            session.commit()
            add(session, 2)
            session.flush()
            raise ZeroDivisionError

        turn = await store.begin_transaction()
        with pytest.raises(ZeroDivisionError):
            await turn.call_with_session(fail)
        await turn.call(lambda connection: insert(connection, 3))
        await turn.call_with_session(lambda session: add(session, 4))
        await keep(turn)
        assert await rows(store) == [3, 4]

    async def test_a_session_goes_on_after_a_failure(self, store: Store) -> None:
        def work(session: Session) -> None:
            add(session, 1)
            session.flush()
            with pytest.raises(IntegrityError), session.begin_nested():
                session.execute(sqlalchemy.insert(Mine).values(x=1))
            add(session, 2)
            session.commit()
            session.execute(sqlalchemy.insert(Mine).values(x=3))
            with pytest.raises(IntegrityError):
                session.execute(sqlalchemy.insert(Mine).values(x=1))
            session.rollback()
            add(session, 4)

        turn = await store.begin_transaction()
        await turn.call_with_session(work)
        with pytest.raises(IntegrityError):
            await turn.call_with_session(lambda session: add(session, 4))
        await keep(turn)
        assert await rows(store) == [1, 2, 4]

    async def test_tables_and_types_are_those_of_the_database(self, store: Store) -> None:
        def work(session: Session) -> Note:
            Base.metadata.create_all(session.connection(), [Base.metadata.tables["notes"]])
            session.add(Note(text="first; and last", kind="long"))
            session.commit()
            return session.scalars(sqlalchemy.select(Note)).one()

        turn = await store.begin_transaction()
        note = await turn.call_with_session(work)
        assert (note.id, note.text, note.kind) == (1, "first; and last", "long")
        await keep(turn)

    async def test_results_that_are_left_open_harm_nobody(self, store: Store) -> None:
        left: list[object] = []

        def work(session: Session) -> None:
            add(session, 1, 2, 3)
            found = session.execute(sqlalchemy.select(Mine).execution_options(yield_per=1))
            assert found.fetchone() is not None
            added = session.execute(sqlalchemy.insert(Mine).values(x=4).returning(Mine.x))
            left.extend((found, added))

        turn = await store.begin_transaction()
        await turn.call_with_session(work)
        await turn.execute("INSERT INTO mine VALUES (5)")
        await keep(turn)
        assert await rows(store) == [1, 2, 3, 4, 5]
        assert len(left) == 2

    async def test_one_engine_serves_all_sessions(self, store: Store) -> None:
        engines: list[object] = []

        def work(session: Session) -> None:
            engines.append(session.connection().engine)
            assert numbers_of(session) == list(range(len(engines) - 1))
            add(session, len(engines) - 1)

        for _ in range(3):
            turn = await store.begin_transaction()
            await turn.call_with_session(work)
            await keep(turn)
        assert len(set(map(id, engines))) == 1

    async def test_a_session_is_of_no_use_after_its_call(self, store: Store) -> None:
        turn = await store.begin_transaction()

        def keep_it(session: Session) -> Session:
            add(session, 1)
            session.flush()
            return session

        session = await turn.call_with_session(keep_it)
        with pytest.raises(Exception, match=r"closed|has ended"):
            session.execute(sqlalchemy.text("INSERT INTO mine VALUES (2)"))
        await keep(turn)
        assert await rows(store) == [1]

    async def test_no_session_ends_the_commit_of_others(self, store: Store) -> None:
        def work(session: Session, statement: str) -> None:
            add(session, 1)
            session.execute(sqlalchemy.text(statement))

        turn = await store.begin_transaction()
        for statement in ("COMMIT", "/* now */ rollback", "SAVEPOINT mine"):
            with pytest.raises(UsageError, match="shares with others"):
                await turn.call_with_session(partial(work, statement=statement))
                pytest.fail(f"{statement} was let through")
        await keep(turn)
        assert await rows(store) == []

    async def test_what_goes_past_the_session_is_undone_as_a_whole(self, store: Store) -> None:
        def go_past(session: Session, work: Callable[[Session], None]) -> None:
            add(session, 1)
            session.flush()
            work(session)

        for number, work in enumerate(BELOW):
            turn = await store.begin_transaction()
            with pytest.raises(UsageError):
                await turn.call_with_session(partial(go_past, work=work))
                pytest.fail(f"{work} was let through")
            await turn.call_with_session(partial(add_one, number=number + 2))
            await keep(turn)
            assert await rows(store) == list(range(2, number + 3)), work

    async def test_a_transaction_runs_sessions_with_arguments(self, store: Store) -> None:
        tx = Transaction(store, MessageEncoder(DurableQueuesConfig(), "alpha"))
        await tx.run_in_session(add, 1, 2)
        await tx.run_sync(insert, 3)
        turn = tx.close()
        assert turn is not None
        await keep(turn)
        assert await rows(store) == [1, 2, 3]

    async def test_sessions_need_an_extra(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "sqlalchemy.orm", None)
        tx = Transaction(store, MessageEncoder(DurableQueuesConfig(), "alpha"))
        with pytest.raises(MissingExtraError, match="the extra 'sqlalchemy'"):
            await tx.run_in_session(add, 1)
        assert tx.close_if_unused()
