"""Transactions within the code of a flow: done once, and given back when the code is run again."""

from collections.abc import Callable, Coroutine
from typing import Any

from postroad.flows import Definition, Flow, Status, flow
from postroad.flows.events import Admitted, Loaded, StatementDone
from tests.support.cases import each
from tests.support.flows.driven import START_MS, Driven, begun, labels

Body = Callable[[Flow], Coroutine[Any, Any, Any]]


def work() -> int:
    return 1


@flow
async def count(flow: Flow) -> list[Any]:
    async with flow.transaction() as tx:
        first = await tx.execute("SELECT 1")
        second = await tx.execute("SELECT 2", (first,))
    return [first, second, await flow.step(work)]


def done(number: int) -> StatementDone:
    return StatementDone((0, number), [(number, "row")])


def test_statements_run_one_after_the_other_and_end_in_one_record() -> None:
    driven = Driven(count)
    handle = driven.machine.handle
    first = handle(Admitted(), START_MS)
    assert first.statement is not None
    assert (first.statement.label, first.concludes) == ("0.0 statement(SELECT 1)", None)
    assert driven.head.wake_ms == 0
    second = handle(done(0), START_MS)
    assert second.statement is not None
    assert (second.statement.label, labels(second)) == ("0.1 statement(SELECT 2)", [])
    third = handle(done(1), START_MS)
    assert (third.statement, third.concludes) == (None, True)
    assert labels(third) == ["0 transaction(kept)"]
    assert driven.waiting == ["1 step(work)"]


def test_transaction_in_the_record_is_not_run_again() -> None:
    driven = Driven(count)
    driven.stored = driven.stored.after(driven.head, driven.machine.handle(Admitted(), START_MS))
    assert labels(driven.machine.handle(done(0), START_MS)) == []
    again = Driven(count, stored=driven.stored).machine.handle(Loaded(), START_MS)
    assert again.statement is not None
    assert again.statement.label == "0.0 statement(SELECT 1)"
    driven = begun(count)
    loaded = driven.load()
    assert (loaded.statement, loaded.concludes, labels(loaded)) == (None, None, [])
    assert driven.waiting == ["1 step(work)"]


def definition(body: Body) -> Definition[[], Any]:
    return flow(name="count")(body)


def test_failed_statement_undoes_the_transaction_unless_caught() -> None:
    async def body(flow: Flow) -> str:
        try:
            async with flow.transaction() as tx:
                await tx.execute("done")
                await tx.execute("refused")
        except KeyError as error:
            await flow.step(work)
            return f"caught {error}"
        return ""

    driven = begun(definition(body))
    assert [it.concludes for it in driven.course] == [None, None, False]
    assert [it.label for it in driven.records] == ["0 transaction(undone)"]
    driven.load()
    assert driven.waiting == ["1 step(work)"]

    async def tolerant(flow: Flow) -> list[Any]:
        seen: list[Any] = []
        async with flow.transaction() as tx:
            try:
                await tx.execute("refused")
            except KeyError:
                seen += await tx.execute("other")
        return seen

    driven = begun(definition(tolerant))
    assert driven.course[-1].concludes is True
    assert driven.result == [["other", 0]]

    async def interrupted(flow: Flow) -> None:
        async with flow.transaction() as tx:
            await tx.execute("SELECT 1")
            raise KeyboardInterrupt

    driven = begun(definition(interrupted))
    assert driven.head.status is Status.PARKED
    assert driven.course[-1].concludes is False


def test_of_two_at_once_one_waits() -> None:
    async def body(flow: Flow) -> Any:
        async def block(name: str) -> Any:
            async with flow.transaction() as tx:
                return [await tx.execute(f"{name}1"), await tx.execute(f"{name}2")]

        return await flow.gather(block("a"), block("b"))

    driven = begun(definition(body))
    ran = [it.statement.name for it in driven.course if it.statement is not None]
    assert ran == ["a1", "a2", "b1", "b2"]
    assert driven.head.status is Status.DONE


async def sleep_inside(flow: Flow) -> None:
    async with flow.transaction():
        await flow.sleep(1)


async def gather_inside(flow: Flow) -> None:
    async with flow.transaction():
        await flow.gather()


async def send_inside(flow: Flow) -> None:
    session = flow.open("beta")
    async with flow.transaction():
        await session.send(1)


async def nested(flow: Flow) -> None:
    async with flow.transaction(), flow.transaction():
        """Nothing."""


async def entered_twice(flow: Flow) -> None:
    block = flow.transaction()
    async with block:
        """Nothing."""
    async with block:
        """Nothing."""


async def used_later(flow: Flow) -> None:
    async with flow.transaction() as tx:
        await tx.execute("SELECT 1")
    await tx.execute("SELECT 2")


async def begins_anew_inside(flow: Flow) -> None:
    async with flow.transaction():
        flow.continue_as_new()


async def patched_inside(flow: Flow) -> None:
    async with flow.transaction() as tx:
        await tx.execute("SELECT 1")
        flow.patched("new")


@each(
    (sleep_inside, "inside a transaction only its own statements can be waited for"),
    (gather_inside, "inside a transaction only its own statements can be waited for"),
    (send_inside, "inside a transaction only its own statements can be waited for"),
    (nested, "a transaction is one block, and not inside another"),
    (entered_twice, "a transaction is one block, and not inside another"),
    (used_later, "the transaction is over: its block was left"),
    (patched_inside, "before the block of a transaction"),
    (begins_anew_inside, "cannot begin anew inside a transaction"),
)
def test_what_a_transaction_is_not_for(body: Body, told: str) -> None:
    driven = begun(definition(body))
    assert driven.head.status is Status.PARKED
    assert told in driven.trouble
    assert driven.said == []


def test_patch_that_was_asked_for_before_it_is_known_inside() -> None:
    async def body(flow: Flow) -> bool:
        flow.patched("new")
        async with flow.transaction() as tx:
            await tx.execute("SELECT 1")
            is_new = flow.patched("new")
        await flow.step(work)
        return is_new

    driven = begun(definition(body))
    driven.load()
    assert driven.waiting == ["2 step(work)"]


async def other_statement(flow: Flow) -> Any:
    async with flow.transaction() as tx:
        await tx.execute("SELECT 1")
        await tx.execute("SELECT 3")


async def other_parameters(flow: Flow) -> Any:
    async with flow.transaction() as tx:
        await tx.execute("SELECT 1")
        await tx.execute("SELECT 2", (7,))


async def one_less(flow: Flow) -> Any:
    async with flow.transaction() as tx:
        await tx.execute("SELECT 1")


async def one_more(flow: Flow) -> Any:
    async with flow.transaction() as tx:
        seen = await tx.execute("SELECT 1")
        await tx.execute("SELECT 2", (seen,))
        await tx.execute("SELECT 3")


async def none(flow: Flow) -> Any:
    return None


async def undone(flow: Flow) -> Any:
    async with flow.transaction() as tx:
        seen = await tx.execute("SELECT 1")
        await tx.execute("SELECT 2", (seen,))
        raise ValueError


@each(other_statement, other_parameters, one_less, one_more, none, undone)
def test_one_that_does_not_fit_its_record_is_parked(body: Body) -> None:
    later = Driven(definition(body), stored=begun(count).stored)
    loaded = later.tell(Loaded())
    assert later.head.status is Status.PARKED
    assert "does not fit its record at step 0" in later.trouble
    assert (loaded.statement, loaded.records) == (None, [])
