"""Gossip in the name of a live node, by somebody who can connect: its calls go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from postroad.core import Address
from postroad.services.broker import Broker
from postroad.services.info_form import write_info
from postroad.services.kinds import VERSION, Kind
from postroad.services.transporters.tcp import TcpTransporter
from postroad.services.transporters.tcp_frames import encode_header
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.raw_peers import RawPeer, raw_client
from tests.support.servers.process import free_port
from tests.support.services.nodes import SHORT, Worker, raw_service

CALLS = 50
HOST = "127.0.0.1"


class Forger:
    """Somebody who speaks in the name of another node."""

    def __init__(self, peer: RawPeer, far: Broker) -> None:
        self._peer = peer
        local = far.registry.local
        self.info = write_info(local.info)
        self.seq = local.seq

    def send(self, kind: Kind, sender: str = "far", **fields: Any) -> None:
        data = msgspec.json.encode({"ver": VERSION, "sender": sender, **fields})
        self._peer.send(encode_header(kind, len(data)) + data)

    def tell(self, sender: str = "far", **changes: Any) -> None:
        row = [{**self.info, **changes}, 1, 1]
        self.send(Kind.GOSSIP_RESPONSE, sender, online={"far": row})


def forge_goodbye(forger: Forger) -> None:
    forger.send(Kind.GOSSIP_RESPONSE, offline={"far": forger.seq + 1})


def forge_goodbye_in_a_request(forger: Forger) -> None:
    forger.send(Kind.GOSSIP_REQUEST, offline={"far": forger.seq + 1})


def forge_restart(forger: Forger) -> None:
    forger.tell(instanceID="another life", seq=forger.seq + 10)


def forge_restart_twice(forger: Forger) -> None:
    forge_restart(forger)
    forge_restart(forger)


def forge_restart_told_by_another(forger: Forger) -> None:
    forger.tell("gossip", instanceID="another life", seq=forger.seq + 10)


def forge_other_life(forger: Forger) -> None:
    forger.tell(instanceID="another life", seq=forger.seq)


def forge_nothing_offered(forger: Forger) -> None:
    forger.tell(services=[], seq=2**53 - 1)


def forge_nothing_offered_twice(forger: Forger) -> None:
    forge_nothing_offered(forger)
    forge_nothing_offered(forger)


def forge_other_place(forger: Forger) -> None:
    forger.send(Kind.GOSSIP_HELLO, host=HOST, port=1)
    forger.tell(port=1, seq=forger.seq + 10)


FORGERIES: list[Callable[[Forger], None]] = [
    forge_goodbye,
    forge_goodbye_in_a_request,
    forge_restart,
    forge_restart_twice,
    forge_restart_told_by_another,
    forge_other_life,
    forge_nothing_offered,
    forge_nothing_offered_twice,
    forge_other_place,
]


@asynccontextmanager
async def acquainted(**settings: Any) -> AsyncIterator[tuple[Broker, Broker, Worker]]:
    urls = {name: f"{HOST}:{free_port()}" for name in ("near", "far")}
    worker = Worker()
    chosen: dict[str, Any] = {**SHORT, **settings}
    near, far = (
        Broker(name, transporter=TcpTransporter(urls, host=HOST, gossip_period_s=0.2), **chosen)
        for name in urls
    )
    far.add(worker)
    async with near, far:
        await near.wait_for_services("worker", timeout_s=DEADLINE_S)
        yield near, far, worker


@asynccontextmanager
async def forging(near: Broker, far: Broker) -> AsyncIterator[Forger]:
    engine = near._engine
    assert engine is not None
    assert engine.network is not None
    transporter = engine.network.transit.transporter
    assert isinstance(transporter, TcpTransporter)
    async with raw_client(Address(HOST, transporter.port)) as peer:
        yield Forger(peer, far)


@pytest.mark.parametrize("forge", FORGERIES)
async def test_forged_gossip_of_a_live_node_costs_no_call(forge: Callable[[Forger], None]) -> None:
    async with acquainted(verify_timeout_s=2.0) as (near, far, worker), forging(near, far) as it:
        calls = [asyncio.ensure_future(near.call("worker.wait")) for _ in range(CALLS)]
        await worker.gate.reached(CALLS)
        node, instance_id = near.registry.node("far"), far.registry.local.instance_id
        assert node is not None
        forge(it)
        # What comes after it was dealt with after it.
        it.send(Kind.GOSSIP_RESPONSE, "last", online={"last": [it.info, 1, 1]})
        await eventually(lambda: near.registry.node("last"), "all was heard")
        assert node.is_available
        await eventually(lambda: node.doubt is None, "the doubt is over")
        assert not any(call.done() for call in calls)
        assert (node.is_available, node.instance_id) == (True, instance_id)
        assert await near.call("worker.act", node_id="far") == "far"
        worker.gate.open()
        assert await asyncio.gather(*calls) == ["done"] * CALLS


async def test_newcomer_is_found_among_nodes_that_are_not_there() -> None:
    async with acquainted() as (near, far, _), forging(near, far) as it:
        for part in range(100):
            rows = {
                f"nobody-{part}-{number}": [
                    {
                        **it.info,
                        "instanceID": f"life {number}",
                        "services": [raw_service("odd", "act")],
                        "hostname": HOST,
                        "port": 1,
                    },
                    1,
                    1,
                ]
                for number in range(20)
            }
            it.send(Kind.GOSSIP_RESPONSE, "gossip", online=rows)
        await eventually(lambda: len(near.registry.nodes()) > 60, "they are heard of")
        urls = {"near": near_address(near), "newcomer": f"{HOST}:{free_port()}"}
        transporter = TcpTransporter(urls, host=HOST, gossip_period_s=0.2)
        newcomer = Broker("newcomer", transporter=transporter, **SHORT)
        newcomer.add(Worker("late"))
        async with newcomer:
            await near.wait_for_services("late", timeout_s=DEADLINE_S)
            assert await near.call("late.act") == "newcomer"
        assert len(near.registry.nodes()) < 200


def near_address(near: Broker) -> str:
    engine = near._engine
    assert engine is not None
    assert engine.network is not None
    transporter = engine.network.transit.transporter
    assert isinstance(transporter, TcpTransporter)
    return f"{HOST}:{transporter.port}"
