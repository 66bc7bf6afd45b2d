"""Nodes of services over cells: nobody sends packets as another node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from postroad.cells import CellAddress, CellDomain, Role, StaticCoreDiscovery
from postroad.net import MessagingService
from postroad.services import Broker, BrokerConfig, Context, Service, action
from postroad.services.transporters.cells import CellsTransporter
from postroad.services.transporters.cells_letters import encode_letter
from tests.support.cells.nodes import CLUSTER, LIMITS, QUICK, Domains
from tests.support.deadlines import eventually
from tests.support.net.tls import Authority

CONFIG = BrokerConfig(start_wait_s=0.0, stop_delay_s=0.0, announce_delay_s=0.0)


class Bank(Service):
    """Remembers who asked it to pay."""

    name = "bank"

    def __init__(self) -> None:
        super().__init__()
        self.payers: list[str | None] = []

    @action
    async def pay(self, ctx: Context) -> str:
        self.payers.append(ctx.node_id)
        return "paid"


@asynccontextmanager
async def brokers(domains: Domains, bank: Bank) -> AsyncIterator[dict[str, Broker]]:
    """A broker in each domain, called like it; the bank is in C1."""
    async with AsyncExitStack() as stack:
        made: dict[str, Broker] = {}
        for name, domain in domains.by_name.items():
            broker = Broker(name, transporter=CellsTransporter(domain), config=CONFIG)
            if name == "C1":
                broker.add(bank)
            await broker.start()
            stack.push_async_callback(broker.stop)
            made[name] = broker
        await made["S1"].wait_for_services(["bank"])
        await eventually(lambda: "S1" in known_to(made["C1"]))
        yield made


def known_to(broker: Broker) -> set[str]:
    return {node.id for node in broker.registry.nodes(only_available=True)}


def packet(kind: str, sender: str, **fields: object) -> tuple[str, bytes]:
    return kind, msgspec.json.encode({"ver": "5", "sender": sender, **fields})


REQUEST = {"id": "1", "action": "bank.pay", "params": {}, "meta": {}, "level": 1, "stream": False}
FORGED = [
    packet("REQ", "S1", **REQUEST),
    packet("DISCONNECT", "S1"),
    packet("INFO", "S1", services=[], instanceID="x", seq=99),
    packet("HEARTBEAT", "S1", cpu=0),
]


@pytest.mark.parametrize("role", Role)
async def test_a_certified_node_cannot_send_packets_as_another(tmp_path: Path, role: Role) -> None:
    authority, bank = Authority(tmp_path), Bank()
    async with (
        Domains(1, 1, tls=authority.tls) as domains,
        brokers(domains, bank) as made,
        MessagingService(CLUSTER, "E1", tls=authority.tls("E1"), limits=LIMITS) as service,
        CellDomain(
            service,
            role=role,
            core_discovery=StaticCoreDiscovery({"C1": [domains.services["C1"].address]}),
            config=QUICK,
        ) as intruder,
    ):
        await eventually(lambda: "E1" in domains["C1"].links.by_domain)
        services = await made["S1"].call("bank.pay")
        assert services == "paid" and bank.payers == ["S1"]

        def send(cell: str, *packets: tuple[str, bytes]) -> None:
            sender = CellAddress(cell, "E1")
            intruder.send_nowait("MOL/node/C1@C1", encode_letter(packets), sender=sender)

        for cell in ("MOL/node/S1", "MOL/node/E1", "MOL/node/C1", "System", "MOL/node/ghost"):
            send(cell, *FORGED)
        # What it sends as itself arrives, after all that.
        send("MOL/node/E1", packet("REQ", "E1", **REQUEST | {"id": "2"}))
        await eventually(lambda: len(bank.payers) == 2)
        assert bank.payers == ["S1", "E1"]
        assert "S1" in known_to(made["C1"])
        assert await made["S1"].call("bank.pay") == "paid"


async def test_a_node_that_lives_elsewhere_cannot_be_taken_over() -> None:
    """Domains need not be called like their nodes."""
    async with Domains(1, 2) as domains, AsyncExitStack() as stack:
        bank = Bank()
        teller = Broker("bank-node", transporter=CellsTransporter(domains["C1"]), config=CONFIG)
        teller.add(bank)
        broker = Broker("customer", transporter=CellsTransporter(domains["S1"]), config=CONFIG)
        for started in (teller, broker):
            await started.start()
            stack.push_async_callback(started.stop)
        await broker.wait_for_services(["bank"])
        assert await broker.call("bank.pay") == "paid"
        sender = domains["S2"].identity.cell("MOL/node/customer")
        forged = encode_letter([packet("REQ", "customer", **REQUEST)])
        for _ in range(3):
            domains["S2"].send_nowait("MOL/node/bank-node", forged, sender=sender)
        assert await broker.call("bank.pay") == "paid"
        # Its letters are as good as those of any node that was not there before.
        sender = domains["S2"].identity.cell("MOL/node/other")
        letter = encode_letter([packet("REQ", "other", **REQUEST)])
        domains["S2"].send_nowait("MOL/node/bank-node", letter, sender=sender)
        await eventually(lambda: len(bank.payers) == 3)
        assert bank.payers == ["customer", "customer", "other"]
