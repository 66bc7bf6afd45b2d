"""What every store tells of mail whose commit is under way, and takes back if that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError
from postroad.durable import Store
from postroad.durable.bridges.protocol import WindowStatus
from postroad.durable.bridges.receiver import WindowMutation
from postroad.durable.store.mutations import FunctionMutation
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.rows import InboxBatch
from postroad.durable.store.tables.store_tables import CommitEvent, StoreTables
from postroad.durable.store.tables.streams import WindowResult
from tests.contract.store_behaviour import Place
from tests.contract.store_inbox_behaviour import ids, numbered
from tests.support.durable.held_commits import held_commit
from tests.support.durable.nodes import (
    NOW_MS,
    OWN,
    PEER,
    QUEUE,
    ROOM,
    SENDER,
    Correspondent,
    accept,
    once,
    post,
    posting_of,
    raising,
)


class Listener:
    """Writes down everything that it is told, with the numbers of the letters."""

    def __init__(self, store: Store) -> None:
        self.heard: list[tuple[str, list[int]]] = []
        self.pages: list[int] = []
        store.commit_listeners.add_precommit_listener(self._on_arriving, self._on_withdrawn)
        store.commit_listeners.add(self._on_news)

    def _on_arriving(self, page: InboxBatch) -> None:
        # One after the other, unlike everything else.
        if self.heard and self.heard[-1][0] == "arriving":
            self.heard[-1][1].extend(letter.id for letter in page.messages)
            self.pages.append(page.id)
        else:
            self._write("arriving", [page])

    def _on_withdrawn(self, pages: Sequence[InboxBatch]) -> None:
        self._write("withdrawn", pages)

    def _on_news(self, news: CommitEvent) -> None:
        self._write("news", news.inbox_batches)

    def _write(self, what: str, pages: Sequence[InboxBatch]) -> None:
        if pages:
            self.heard.append((what, [letter.id for page in pages for letter in page.messages]))
            self.pages.extend(page.id for page in pages)

    def take(self) -> list[tuple[str, list[int]]]:
        """What was heard since the last time."""
        heard, self.heard = self.heard, []
        return heard


def accepting(author: Correspondent, start: int, stop: int) -> FunctionMutation[WindowResult]:
    """A unit that takes some pages of a sender."""

    def write(ledger: StoreTables) -> WindowResult:
        return ledger.streams.accept(SENDER, author.window(start, stop), OWN, ROOM, NOW_MS)

    return FunctionMutation(write)


def arriving(author: Correspondent, start: int, stop: int, room: int = ROOM) -> WindowMutation:
    """The unit of a node that receives some pages."""
    return WindowMutation(SENDER, author.window(start, stop), OWN, room, 0)


def failing(error: Exception) -> faults.FaultAction:
    return once(raising(error))


async def fail_to_accept(store: Store, author: Correspondent) -> None:
    """Have the commit of the first page fail."""
    failure = failing(StoreUnavailableError("away"))
    with (
        faults.arm_fault_point("durable.commit.before", failure),
        pytest.raises(StoreUnavailableError),
    ):
        await accept(store, author.window(0, 1))


class EarlyBehaviour:
    """Pages of other stores are told of while they are committed, and again when they are."""

    @pytest.fixture
    def author(self) -> Correspondent:
        return Correspondent([numbered(2), numbered(1, 3), numbered(1, 4), numbered(1, 5)])

    @pytest.fixture
    def listener(self, store: Store) -> Listener:
        return Listener(store)

    async def test_what_arrives_is_told_before_its_commit_and_after_it(
        self, store: Store, place: Place, author: Correspondent, listener: Listener
    ) -> None:
        with held_commit() as commit:
            accepted = asyncio.create_task(accept(store, author.window(0, 2)))
            await commit.begun()
            assert listener.take() == [("arriving", [1, 2, 3])]
            if place.reads_beside:
                assert await store.read(query.peek_queue, QUEUE, 10) == []
            assert not accepted.done()
            commit.go_on()
            assert (await accepted).watermark == 3
        assert listener.take() == [("news", [1, 2, 3])]
        assert await ids(store) == [1, 2, 3]

    async def test_idle_store_that_knows_the_sender_tells_at_once(
        self, store: Store, author: Correspondent, listener: Listener
    ) -> None:
        await accept(store, author.window(0, 1))
        listener.take()
        first, second = arriving(author, 1, 2), arriving(author, 2, 3)
        store.submit(first)
        assert listener.take() == [("arriving", [3])]
        # What comes behind it has to wait for its turn.
        store.submit(second)
        assert listener.take() == []
        await asyncio.gather(first.done, second.done)
        assert listener.take() == [("arriving", [4]), ("news", [3, 4])]
        again = arriving(author, 1, 3)
        store.submit(again)
        await again.done
        assert again.result.watermark == 4
        assert listener.take() == []
        assert await ids(store) == [1, 2, 3, 4]

    async def test_mail_that_does_not_follow_is_not_told_at_once(
        self, store: Store, author: Correspondent, listener: Listener
    ) -> None:
        await accept(store, author.window(0, 1))
        listener.take()
        behind, full = arriving(author, 2, 3), arriving(author, 1, 2, room=1)
        for unit, verdict in ((behind, WindowStatus.GAP), (full, WindowStatus.FULL)):
            store.submit(unit)
            await unit.done
            assert unit.result.status is verdict
        assert listener.take() == []

    async def test_what_was_told_at_once_and_is_not_to_be_stored_is_taken_back(
        self, store: Store, author: Correspondent, listener: Listener
    ) -> None:
        await accept(store, author.window(0, 1))
        listener.take()
        unit = arriving(author, 1, 2)
        store.submit(unit)
        # As if something else had come before it.
        (stream,) = store._tables.streams._streams.values()
        page = author.window(1, 2).batches[0]
        stream.watermark, stream.chain = 3, page.chain
        with pytest.raises(RuntimeError, match="must not be stored"):
            await unit.done
        assert listener.take() == [("arriving", [3]), ("withdrawn", [3])]
        await accept(store, author.window(1, 2))
        assert listener.take() == [("news", [3])]
        assert await ids(store) == [1, 2, 3]

    async def test_news_are_told_before_the_sender_is_answered(
        self, store: Store, author: Correspondent, listener: Listener
    ) -> None:
        accepted = accepting(author, 0, 1)
        accepted.done.add_done_callback(lambda _: listener.heard.append(("answered", [])))
        store.submit(accepted)
        await accepted.done
        await asyncio.sleep(0)
        assert [what for what, _ in listener.take()] == ["arriving", "news", "answered"]

    async def test_what_did_not_arrive_is_taken_back_and_nothing_is_told_early_for_a_while(
        self, store: Store, author: Correspondent, listener: Listener
    ) -> None:
        await fail_to_accept(store, author)
        assert listener.take() == [("arriving", [1, 2]), ("withdrawn", [1, 2])]
        await accept(store, author.window(0, 1))
        assert listener.take() == [("news", [1, 2])]
        await accept(store, author.window(1, 2))
        assert listener.take() == [("arriving", [3]), ("news", [3])]
        assert await ids(store) == [1, 2, 3]

    async def test_a_commit_of_something_else_is_as_good(
        self, store: Store, author: Correspondent, listener: Listener
    ) -> None:
        with faults.arm_fault_point(
            "durable.commit.before", failing(StoreUnavailableError("away"))
        ):
            with pytest.raises(StoreUnavailableError):
                await post(store, PEER, b"lost")
            await post(store, PEER, b"kept")
            await accept(store, author.window(0, 1))
        assert listener.take() == [("arriving", [1, 2]), ("news", [1, 2])]

    async def test_what_fails_again_is_neither_told_nor_taken_back(
        self, store: Store, author: Correspondent, listener: Listener
    ) -> None:
        for _ in range(3):
            await fail_to_accept(store, author)
        assert listener.take() == [("arriving", [1, 2]), ("withdrawn", [1, 2])]

    async def test_what_was_taken_back_comes_as_another_page(
        self, store: Store, author: Correspondent, listener: Listener
    ) -> None:
        # The fault is not the database's, so each of them is committed by itself.
        accepted, other = accepting(author, 0, 1), posting_of(PEER, b"beside")
        with faults.arm_fault_point("durable.commit.before", failing(ZeroDivisionError())):
            for unit in (accepted, other):
                store.submit(unit)
            await asyncio.gather(accepted.done, other.done)
        assert listener.take() == [
            ("arriving", [1, 2]),
            ("withdrawn", [1, 2]),
            ("news", [1, 2]),
        ]
        before, withdrawn, after = listener.pages
        assert before == withdrawn != after
        assert await ids(store) == [1, 2]

    @pytest.mark.parametrize(
        "error", [StoreUnavailableError("away"), ZeroDivisionError()], ids=repr
    )
    async def test_a_commit_whose_answer_is_lost_is_taken_back_and_told(
        self, store: Store, author: Correspondent, listener: Listener, error: Exception
    ) -> None:
        with faults.arm_fault_point("durable.commit.after", failing(error)):
            assert (await accept(store, author.window(0, 1))).watermark == 2
        assert listener.take() == [
            ("arriving", [1, 2]),
            ("withdrawn", [1, 2]),
            ("news", [1, 2]),
        ]
        assert await ids(store) == [1, 2]

    async def test_what_a_node_sends_to_itself_is_told_when_it_is_kept(
        self, store: Store, listener: Listener
    ) -> None:
        # Nobody else has it until then.
        (id,) = await post(store, OWN, b"1")
        assert listener.take() == [("news", [id])]

    async def test_every_page_of_a_long_commit_is_told_once(
        self, store: Store, author: Correspondent, listener: Listener
    ) -> None:
        first = await store.begin_transaction()
        units = [accepting(author, 0, 1), accepting(author, 1, 2), accepting(author, 2, 3)]
        store.submit(units[0])
        begin = asyncio.create_task(store.begin_transaction())
        await asyncio.sleep(0)
        first.finish(None)
        second = await begin
        assert listener.heard in ([("arriving", [1, 2])], [("arriving", [1, 2]), ("news", [1, 2])])
        store.submit(units[1])
        store.submit(units[2])
        second.finish(None)
        await asyncio.gather(*(unit.done for unit in units))
        for what in ("arriving", "news"):
            told = [
                letter for kind, letters in listener.heard if kind == what for letter in letters
            ]
            assert told == [1, 2, 3, 4]

    async def test_failing_listener_harms_no_other(
        self, store: Store, author: Correspondent
    ) -> None:
        def fail(pages: object) -> None:
            raise ZeroDivisionError

        store.commit_listeners.add_precommit_listener(fail, fail)
        listener = Listener(store)
        await fail_to_accept(store, author)
        assert listener.take() == [("arriving", [1, 2]), ("withdrawn", [1, 2])]
        await accept(store, author.window(0, 1))
        assert await ids(store) == [1, 2]
