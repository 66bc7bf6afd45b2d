"""What scenario `cluster` has found once, as small as it can be told."""

import asyncio
from random import Random

import msgspec

from postroad.cluster import MembershipEvent, MembershipEventType, MemberState
from postroad.cluster.membership import MemberRecord, Membership, gossip
from postroad.cluster.membership.local_member import new_local_record
from postroad.core import Address
from postroad.testing import SimCluster, SimNode

RECORDS_MAX = 10


class Driver:
    """One machine and what comes out of it, driven by hand."""

    def __init__(self) -> None:
        self.machine = Membership(
            "local",
            Address("10.0.0.1", 7000),
            instance=1,
            incarnation=1,
            secret=b"secret",
            rng=Random(1),
        )
        self.now = 0.0
        self.changes: list[tuple[float, MembershipEvent]] = []
        self.machine.start(self.now)
        self.machine.set_seeds([], self.now)

    def receive(self, record: MemberRecord) -> None:
        data = gossip.encode_packet(gossip.GossipPacket(records=[record]))
        self.machine.receive(data, record.address, self.now)
        self._note()

    def admit(self, record: MemberRecord) -> None:
        """Receive the record of a node, which then acknowledges its probe."""
        self.receive(record)
        (probe,) = (packet for packet in self.pop_sent() if isinstance(packet, gossip.ProbePacket))
        self.acknowledge(probe, record)

    def acknowledge(self, probe: gossip.ProbePacket, record: MemberRecord) -> None:
        ack = gossip.ProbeAckPacket(
            nonce=probe.nonce,
            name=record.name,
            instance=record.instance,
            leave_digest=record.leave_digest,
            incarnation=record.incarnation,
            is_member=True,
        )
        self.machine.receive(gossip.encode_packet(ack), record.address, self.now)
        self._note()

    def pop_sent(self) -> list[gossip.MembershipPacket]:
        outgoing = self.machine.drain_outgoing()
        return [
            gossip.decode_packet(packet.payload, records_max=RECORDS_MAX) for packet in outgoing
        ]

    def run(self, until: float) -> None:
        while self.machine.deadline() <= until:
            self.now = self.machine.deadline()
            self.machine.tick(self.now)
            self._note()

    def _note(self) -> None:
        reported = [
            event for event in self.machine.drain_events() if isinstance(event, MembershipEvent)
        ]
        self.changes += [(self.now, change) for change in reported]


def record_of(
    name: str, instance: int, incarnation: int, secret: bytes = b"theirs"
) -> MemberRecord:
    return new_local_record(
        name,
        Address("10.0.0.2", 7000),
        instance=instance,
        incarnation=incarnation,
        secret=secret,
        properties={"role": "worker"},
    )


def test_process_that_is_gone_does_not_take_over_a_name() -> None:
    """Its tombstone must not displace a live member, though that is out of reach for a moment."""
    for state in (MemberState.DEAD, MemberState.LEFT):
        driver = Driver()
        driver.admit(record_of("holder", 2, 10))
        gone = msgspec.structs.replace(
            record_of("holder", 3, 20), state=state, leave_secret=b"theirs", reported_by="somebody"
        )
        driver.receive(gone)
        # Nobody answers, for as long as a probe about a name takes.
        driver.run(until=driver.machine.config.probe_timeout_s + 0.5)
        member = driver.machine.member("holder")
        assert member is not None and member.instance == 2, f"replaced by one that is {state.name}"


def test_properties_of_a_successor_are_requested() -> None:
    """They are left out of datagrams where they are large, also of one that tells of a restart."""
    driver = Driver()
    driver.admit(record_of("worker", 2, 10))
    driver.pop_sent()
    successor = record_of("worker", 3, 20).without_properties()
    driver.receive(successor)
    # Asked is who has the name, who is not there, then the other, who is.
    (datagram, _) = (
        packet for packet in driver.pop_sent() if isinstance(packet, gossip.ProbePacket)
    )
    driver.acknowledge(datagram, successor)
    (probe,) = (packet for packet in driver.pop_sent() if isinstance(packet, gossip.ProbePacket))
    driver.acknowledge(probe, successor)
    member = driver.machine.member("worker")
    assert member is not None and member.instance == successor.instance
    assert any(isinstance(packet, gossip.PropertiesRequestPacket) for packet in driver.pop_sent())


def test_unhealthy_node_removes_no_member_at_once() -> None:
    """However long it waited for the answer, whoever is suspected may speak up after that."""
    driver = Driver()
    driver.admit(record_of("worker", 2, 10))
    driver.machine._context.health.score = driver.machine.config.local_health_max
    driver.run(until=60.0)
    times = {change.kind: time for time, change in driver.changes}
    waited_s = times[MembershipEventType.REMOVED] - times[MembershipEventType.REACHABILITY]
    assert waited_s >= driver.machine.config.confirmed_failure_timeout_s


def test_connection_is_made_before_it_is_lost() -> None:
    """Also where it was reset before the process that was asked for it got to run."""
    reported: list[str] = []

    class Teller(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            reported.append("made")

        def connection_lost(self, exc: Exception | None) -> None:
            reported.append("lost")

    async def serve(node: SimNode) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(Teller, node.host, 7000)
        await loop.create_future()

    async def connect(node: SimNode) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(asyncio.Protocol, "server", 7000)
        await loop.create_future()

    with SimCluster(1) as sim:
        server, client = sim.add("server", serve), sim.add("client", connect)
        server.start()
        sim.run_for(0.1)
        server.pause()
        client.start()
        sim.run_for(1.0)
        assert sim.network.reset_connections("client", "server") == 1
        sim.run_for(1.0)
        server.resume()
        sim.run_for(1.0)
    assert reported == ["made", "lost"]
