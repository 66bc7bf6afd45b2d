"""Bridges that follow the members of a cluster: they join, move and leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from postroad.durable import DurableQueues, SqliteStore
from tests.support.cluster.nodes import QUICK as QUICK_MEMBERS
from tests.support.cluster.nodes import Node, running_node
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import QUICK, Recorder, until_empty


@asynccontextmanager
async def member_with_mail(
    name: str, directory: Path, *seeds: Node, **options: Any
) -> AsyncIterator[tuple[Node, DurableQueues]]:
    """A member of the cluster with mail."""
    async with running_node(name, *seeds, config=QUICK_MEMBERS, **options) as node:
        store = SqliteStore(directory / f"{name}.db")
        async with DurableQueues(node.agent, store, config=QUICK) as mail:
            yield node, mail


async def test_messages_wait_for_member_that_joins_later(tmp_path: Path) -> None:
    async with member_with_mail("alpha", tmp_path) as (contact, alpha):
        await alpha.send("orders", b"early", to="beta")
        assert (await alpha.bridges.status()).bridges == []
        async with member_with_mail("beta", tmp_path, contact) as (_, beta):
            recorder = await Recorder.at(beta)
            await alpha.send("orders", b"late", to="beta")
            assert await recorder.until(2) == [b"early", b"late"]
            await until_empty(alpha, "beta")


async def test_messages_follow_member_to_new_address(tmp_path: Path) -> None:
    """B8: the member comes back at another address, with its store."""
    async with member_with_mail("alpha", tmp_path) as (contact, alpha):
        recorder = Recorder()
        addresses = set()
        for number in range(3):
            async with member_with_mail("beta", tmp_path, contact) as (node, beta):
                addresses.add(node.address)
                await beta.consume("orders", recorder)
                await alpha.send("orders", b"%d there" % number, to="beta")
                await recorder.until(2 * number + 1)
            await alpha.send("orders", b"%d away" % number, to="beta")
        async with member_with_mail("beta", tmp_path, contact) as (_, beta):
            await beta.consume("orders", recorder)
            await recorder.until(6)
        assert len(addresses) > 1
        expected = [b"0 there", b"0 away", b"1 there", b"1 away", b"2 there", b"2 away"]
        assert recorder.bodies == expected


async def test_bridge_ends_when_its_peer_has_left(tmp_path: Path) -> None:
    async with member_with_mail("alpha", tmp_path) as (contact, alpha):
        async with member_with_mail("beta", tmp_path, contact) as (_, beta):
            await Recorder.at(beta)
            await alpha.send("orders", b"tea", to="beta")
            await until_empty(alpha, "beta")
            assert [bridge.peer for bridge in (await alpha.bridges.status()).bridges] == ["beta"]

        async def is_gone() -> bool:
            return (await alpha.bridges.status()).bridges == []

        await eventually(is_gone, "the bridge has ended")
        await alpha.send("orders", b"cake", to="beta")
        assert [message.body for message in await alpha.bridges.peek("beta")] == [b"cake"]


async def test_crashed_member_gets_messages_after_restart(tmp_path: Path) -> None:
    async with member_with_mail("alpha", tmp_path) as (contact, alpha):
        recorder = Recorder()
        async with member_with_mail("beta", tmp_path, contact) as (node, beta):
            await beta.consume("orders", recorder)
            await alpha.send("orders", b"1", to="beta")
            await recorder.until(1)
            await node.crash()
            await alpha.send("orders", b"2", to="beta")
            await contact.until_removed("beta")
            await alpha.send("orders", b"3", to="beta")
        async with member_with_mail("beta", tmp_path, contact) as (_, beta):
            await beta.consume("orders", recorder)
            assert await recorder.until(3) == [b"1", b"2", b"3"]
