"""Ids of messages: whoever sees one knows nothing of the others."""

from itertools import pairwise

from postroad.cells.envelope import ID_BYTES
from tests.support.cells.nodes import Inbox
from tests.support.cells.workshop import Workshop
from tests.support.deadlines import eventually

COUNT = 2_000


async def test_ids_are_unique_and_do_not_follow_from_one_another() -> None:
    exchanges = [Workshop().exchange for _ in range(2)]
    ids = [exchange.new_id() for exchange in exchanges for _ in range(COUNT)]
    assert len(set(ids)) == 2 * COUNT
    assert {len(id) for id in ids} == {ID_BYTES}

    exchange = Workshop().exchange
    ids = [exchange.new_id() for _ in range(COUNT)]
    for half in (slice(8), slice(8, 16)):
        numbers = [int.from_bytes(id[half]) for id in ids]
        assert len(set(numbers)) == COUNT
        steps = [after - before for before, after in pairwise(numbers)]
        assert len(set(steps)) == len(steps)
        assert min(abs(step) for step in steps) > 1 << 32


async def test_every_message_has_an_id_of_its_own() -> None:
    shop, inbox = Workshop(), Inbox()
    shop.add("a", inbox)
    for _ in range(3):
        shop.tell("a")
        await shop.call("a")
    await eventually(lambda: len(inbox.messages) == 6)
    assert len({it.id for it in inbox.messages}) == 6
