"""Operations on queues, dead letters and bridges, of a node that runs and of one at rest."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from postroad.admin.errors import InvalidRequest, NotFound
from postroad.admin.operations import at_rest
from postroad.core.errors import DeadLetterNotFoundError, StoreLockedError, UsageError
from postroad.durable import Message, RetryPolicy, Transaction
from postroad.node import Consuming, Queue

from .operating import Operator, make_app, operated


async def test_queues_are_listed_and_shown(operator: Operator) -> None:
    await operator.do("queue.post", queue="letters", body="hi")
    queues = {it.name: it for it in await operator.do("queue.ls")}
    assert queues["orders"].has_consumer
    letters = await operator.do("queue.show", queue="letters")
    assert (letters.depth, letters.has_consumer, letters.is_paused) == (1, False, False)
    assert queues["letters"].depth == 1
    with pytest.raises(NotFound, match="no queue 'lettres'; did you mean 'letters'"):
        await operator.do("queue.show", queue="lettres")


async def test_messages_are_posted_and_peeked_at(operator: Operator) -> None:
    said = {"queue": "letters", "key": "k", "headers": {"colour": "red"}}
    posted = await operator.do("queue.post", body={"a": [1]}, **said)
    await operator.do("queue.post", queue="letters", body="plain text")
    first, second = await operator.do("queue.peek", queue="letters")
    assert (first.id, first.key, first.headers) == (posted.id, "k", {"colour": "red"})
    assert (first.body, first.encoding, first.size) == ('{"a":[1]}', "json", 9)
    assert (second.body, second.encoding) == ("plain text", "text")
    (found,) = await operator.do("queue.peek", queue="letters", id=second.id)
    assert found == second
    assert await operator.do("queue.peek", queue="letters", id="1") == []
    assert await operator.do("queue.peek", queue="letters", limit=1) == [first]
    with pytest.raises(NotFound, match="no id of a message"):
        await operator.do("queue.peek", queue="letters", id="x1")


class Order(msgspec.Struct):
    item: str
    count: int = 1


async def test_typed_queue_shows_its_schema_and_refuses_what_its_consumer_could_not_read(
    tmp_path: Path,
) -> None:
    async with operated(tmp_path, app=make_app(queues=[Queue("parcels", Order)])) as operator:
        view = await operator.do("queue.schema", queue="parcels")
        assert (view.type, view.schema["required"]) == ("Order", ["item"])
        untyped = await operator.do("queue.schema", queue="letters")
        assert (untyped.type, untyped.schema) == (None, None)
        elsewhere = await operator.do("queue.schema", queue="parcels", peer="beta")
        assert (elsewhere.node, elsewhere.schema) == ("beta", None)
        with pytest.raises(InvalidRequest, match=r"parcels does not take this: .*\$\.count"):
            await operator.do("queue.post", queue="parcels", body={"item": "tea", "count": "two"})
        await operator.do("queue.post", queue="parcels", body={"item": "tea"})
        (message,) = await operator.do("queue.peek", queue="parcels")
        assert message.body == '{"item":"tea"}'


async def test_what_was_tried_is_shown(tmp_path: Path) -> None:
    async def put_off(message: Message, tx: Transaction) -> None:
        raise OSError("not now")

    later = Consuming(
        queue="orders", handler=put_off, retry=RetryPolicy(initial_delay_s=3_600, max_delay_s=3_600)
    )
    async with operated(tmp_path, app=make_app(consumers=[later])) as operator:
        at = {"queue": "orders"}
        await operator.do("queue.post", body="tea", **at)
        (tried,) = await operator.until(lambda it: it and it[0].failures, "queue.peek", **at)
        assert (tried.body, tried.error, tried.is_held) == ("tea", "OSError: not now", False)
        assert tried.next_try_at > tried.posted_at
        queue = await operator.do("queue.show", **at)
        assert (queue.handled, queue.failed, queue.oldest_age_s is None) == (0, 1, False)
        overview = await operator.until(lambda it: it.failed_per_s > 0, "node.overview")
        assert overview.handled_per_s == 0


async def test_a_queue_is_paused_moved_and_purged(operator: Operator) -> None:
    assert (await operator.do("queue.pause", queue="orders")).is_paused
    for number in range(3):
        await operator.do("queue.post", queue="orders", body=number)
    await operator.do("queue.post", queue="letters", body="hi")
    with pytest.raises(NotFound, match="no queue 'nowhere'"):
        await operator.do("queue.move", queue="orders", to="nowhere")
    assert (await operator.do("queue.move", queue="orders", to="letters", limit=2)).count == 2
    assert (await operator.do("queue.show", queue="orders")).depth == 1
    assert (await operator.do("queue.purge", queue="letters")).count == 3
    assert not (await operator.do("queue.resume", queue="orders")).is_paused
    await operator.until(lambda it: it.handled == 1, "queue.show", queue="orders")


async def test_dead_letters_are_looked_at_retried_and_dropped(operator: Operator) -> None:
    for _ in range(2):
        await operator.do("queue.post", queue="orders", body="bad", headers={"colour": "red"})
    dead = await operator.until(lambda it: len(it) == 2, "dlq.ls")
    assert {it.reason for it in dead} == {"rejected"}
    assert (dead[0].body, dead[0].headers, dead[0].retried) == ("bad", {"colour": "red"}, 0)
    (group,) = await operator.do("dlq.groups")
    assert (group.queue, group.reason, group.count) == ("orders", "rejected", 2)
    assert await operator.do("dlq.show", id=dead[0].id) == dead[0]
    assert await operator.do("dlq.ls", after=int(dead[0].id)) == dead[1:]
    assert await operator.do("dlq.ls", queue="letters") == []
    assert await operator.do("dlq.ls", reason="expired") == []
    assert (await operator.do("dlq.count", queue="orders")).count == 2
    assert (await operator.do("dlq.count", ids=[dead[0].id, "99"])).count == 1

    assert (await operator.do("dlq.retry", ids=[dead[0].id])).count == 1
    died = await operator.until(lambda it: it and it[-1].retried, "dlq.ls")
    assert (died[-1].retried, died[-1].headers) == (1, {"colour": "red"})
    assert died[-1].message == dead[0].message
    assert (await operator.do("dlq.drop", ids=[died[-1].id])).count == 1
    assert (await operator.do("dlq.drop", queue="letters")).count == 0
    assert (await operator.do("dlq.drop")).count == 1
    with pytest.raises(DeadLetterNotFoundError):
        await operator.do("dlq.show", id=dead[0].id)
    with pytest.raises(DeadLetterNotFoundError):
        await operator.do("dlq.retry", ids=["98", "99"])
    assert (await operator.do("dlq.retry", ids=[])).count == 0
    for _ in range(3):
        await operator.do("queue.post", queue="orders", body="bad")
    await operator.until(lambda it: len(it) == 3, "dlq.ls")
    assert (await operator.do("dlq.drop", limit=2)).count == 2
    assert (await operator.do("dlq.retry", limit=2)).count == 1


async def test_bridges_to_peers_that_are_away(operator: Operator) -> None:
    await operator.do("queue.post", queue="letters", peer="gamma", body="hi")
    (bridge,) = await operator.do("bridge.ls")
    assert (bridge.peer, bridge.phase, bridge.depth, bridge.target) == ("gamma", "away", 1, None)
    assert (await operator.do("bridge.peek", peer="gamma"))[0].body == "hi"
    assert (await operator.do("bridge.pause", peer="gamma")).phase == "paused"
    assert not (await operator.do("bridge.resume", peer="gamma")).is_paused
    assert (await operator.do("bridge.reset", peer="gamma")).epoch == 2
    assert (await operator.do("bridge.purge", peer="gamma")).count == 1
    emptied = await operator.do("bridge.show", peer="gamma")
    assert (emptied.depth, emptied.oldest_age_s, emptied.posted) == (0, None, 1)
    await operator.do("queue.post", queue="letters", peer="gamma", body="ho")
    assert (await operator.do("bridge.show", peer="gamma")).depth == 1
    assert (await operator.do("bridge.purge", peer="gamma")).count == 1
    assert await operator.do("bridge.peek", peer="gamma") == []
    with pytest.raises(NotFound, match="never posted to 'gama'; did you mean 'gamma'"):
        await operator.do("bridge.show", peer="gama")


async def test_bridges_between_nodes_that_run(alpha: Operator, beta: Operator) -> None:
    await alpha.do("queue.post", queue="letters", peer="beta", body="hi")
    await beta.until(lambda it: any(q.name == "letters" for q in it), "queue.ls")
    bridge = await alpha.until(lambda it: it.depth == 0, "bridge.show", peer="beta")
    assert (bridge.sent, bridge.posted, bridge.trouble) == (1, 1, None)
    assert bridge.target == str(beta.office.node.service.address)


async def test_the_mail_of_a_node_at_rest(tmp_path: Path) -> None:
    app = make_app(consumers=[])
    async with operated(tmp_path, app=app) as operator:
        await operator.do("queue.post", queue="orders", body="bad")
        await operator.do("queue.post", queue="letters", body="hi")
        await operator.do("queue.post", queue="letters", peer="gamma", body="hi")
        store = str(tmp_path / "alpha.db")
        with pytest.raises(StoreLockedError, match="alpha"):
            async with at_rest(store, can_change=True):
                raise AssertionError("a node works on it")
        async with at_rest(store, can_change=False) as beside:
            assert {it.name for it in await Operator(beside).do("queue.ls")} >= {"orders"}
    async with at_rest(store, can_change=True) as office:
        resting = Operator(office)
        assert office.name == "alpha"
        assert (await resting.do("queue.pause", queue="orders")).is_paused
        assert (await resting.do("queue.move", queue="letters", to="orders")).count == 1
        assert (await resting.do("bridge.show", peer="gamma")).phase == "at rest"
        assert (await resting.do("bridge.pause", peer="gamma")).phase == "paused"
        assert await resting.do("dlq.groups") == []
        hits = await resting.do("search.find", text="orders")
        assert [(it.kind, it.id) for it in hits] == [("queue", "orders")]
        for operation in ("queue.post", "node.show", "cluster.ls", "cells.ps", "service.ls"):
            said = {"queue": "orders", "body": 1} if operation == "queue.post" else {}
            with pytest.raises(UsageError, match="needs a running node"):
                await resting.do(operation, **said)
    async with operated(tmp_path) as operator:
        orders = await operator.do("queue.show", queue="orders")
        assert (orders.depth, orders.is_paused) == (2, True)
        assert (await operator.do("bridge.show", peer="gamma")).is_paused
        await operator.do("queue.resume", queue="orders")
        (dead,) = await operator.until(lambda it: len(it) == 1, "dlq.ls")
    async with at_rest(store, can_change=True) as office:
        resting = Operator(office)
        assert (await resting.do("dlq.show", id=dead.id)).reason == "rejected"
        assert (await resting.do("dlq.retry", queue="orders")).count == 1
        assert (await resting.do("queue.purge", queue="orders")).count == 1
