"""Honest nodes, one of them late, and a stranger who does all it can for a while."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import msgspec

from postroad.cluster import ClusterAgent, ClusterMessaging, Member, StaticDiscovery
from postroad.core import Address
from postroad.core.errors import NameConflictError
from postroad.net import MessagingService
from postroad.net import datagrams as unicast
from postroad.testing import LivenessFailure, SimCluster, SimNode, Simulation, require
from tests.simulation.hostile.stranger import PORT, Stranger
from tests.simulation.plans import Agenda

CLUSTER = "simulated"
_SECRET = "what all of them know"
_OTHER_SECRET = "what the stranger guesses"
# All know each other by then, and the attacks begin.
_CALM_S = 8.0
_ATTACKED_S = 40.0
# Whoever starts is known to all within so long, whatever goes on.
_KNOWN_S = 15.0
_NOTE_S = 0.5
_CHECK_S = 0.25


class Attack(enum.Enum):
    FLOOD = "flood"
    CLAIM = "claim"
    ACCUSE = "accuse"
    REFLECT = "reflect"
    REPLAY = "replay"
    JOIN = "join"
    """With a secret that is another one."""


class PlannedAttack(msgspec.Struct, frozen=True):
    kind: Attack
    time: float
    victim: str
    about: str


class Plan(msgspec.Struct, frozen=True):
    names: list[str]
    late_s: float
    """When the last of them starts."""
    has_secret: bool
    attacks: list[PlannedAttack]


def draw_plan(rng: Random) -> Plan:
    names = [f"n{number}" for number in range(rng.randint(3, 6))]
    has_secret = rng.random() < 0.5
    kinds = rng.choices(
        [attack for attack in Attack if has_secret or attack is not Attack.JOIN], k=25
    )
    attacks = [
        PlannedAttack(
            kind=kind,
            time=rng.uniform(_CALM_S, _ATTACKED_S),
            victim=rng.choice(names[:-1]),
            about=rng.choice(names[:-1]),
        )
        for kind in kinds
    ]
    late_s = rng.uniform(_CALM_S, _ATTACKED_S - _KNOWN_S)
    return Plan(names, late_s, has_secret, sorted(attacks, key=lambda attack: attack.time))


class World:
    """The nodes, and what they were told."""

    def __init__(self, sim: SimCluster, plan: Plan, rng: Random) -> None:
        self.sim = sim
        self.plan = plan
        self.agents: dict[str, ClusterAgent] = {}
        self.started: dict[str, float] = {}
        self.failures: list[str] = []
        # Numbered notes as they arrived: receiver, sender, number.
        self.notes: Counter[tuple[str, str, int]] = Counter()
        self.bystander_bytes = 0
        self.stranger = Stranger(CLUSTER, rng)
        self.agenda = Agenda(sim)
        for name in plan.names:
            sim.add(name, self._run_honest)
        sim.add("stranger", self.stranger.run)
        sim.add("bystander", self._run_bystander)
        sim.add("guesser", self._run_guesser)
        for number, name in enumerate(plan.names):
            is_late = name == plan.names[-1]
            self.agenda.at(plan.late_s if is_late else 0.1 * number, self.sim.nodes[name].start)
        for host in ("stranger", "bystander"):
            self.agenda.at(0.0, self.sim.nodes[host].start)
        for attack in plan.attacks:
            self.agenda.at(attack.time, lambda due=attack: self._attack(due))  # type: ignore[misc]
        sim.call_every(_CHECK_S, self.check)

    def address(self, name: str) -> Address:
        return Address(self.sim.nodes[name].host, PORT)

    # Programs.

    async def _run_honest(self, node: SimNode) -> None:
        secret = _SECRET if self.plan.has_secret else None
        bind = f"{node.host}:{PORT}"
        seeds = [str(self.address(name)) for name in self.plan.names[:2]]
        async with MessagingService(CLUSTER, node.name, bind, secret=secret) as service:
            agent = ClusterAgent(service, StaticDiscovery(seeds))
            communication = ClusterMessaging(agent)
            communication.subscribe("note", self._hear_of(node.name))
            self.started[node.name] = self.sim.now
            try:
                async with agent:
                    self.agents[node.name] = agent
                    await self._send_notes(agent, communication)
            except NameConflictError as error:
                self.failures.append(f"{node.name}: {error}")

    async def _send_notes(self, agent: ClusterAgent, communication: ClusterMessaging) -> None:
        number = 0
        while agent.failure is None:
            for member in agent.members[1:]:
                number += 1
                text = str(number).encode()
                await communication.send(member.name, "note", text, reliable=False)
            await asyncio.sleep(_NOTE_S)
        raise agent.failure

    def _hear_of(self, receiver: str) -> Any:
        def hear(message: bytes, member: Member) -> None:
            self.notes[receiver, member.name, int(message)] += 1

        return hear

    async def _run_bystander(self, node: SimNode) -> None:
        world = self

        class Ear(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
                world.bystander_bytes += len(data)

        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(Ear, local_addr=(node.host, PORT))
        await loop.create_future()

    async def _run_guesser(self, node: SimNode) -> None:
        bind = f"{node.host}:{PORT}"
        contact = str(self.address(self.plan.names[0]))
        async with (
            MessagingService(CLUSTER, "guesser", bind, secret=_OTHER_SECRET) as service,
            ClusterAgent(service, StaticDiscovery([contact])) as agent,
        ):
            await agent.wait_closed()

    # Attacks.

    def _attack(self, attack: PlannedAttack) -> None:
        self.sim.log.add("plan", attack.kind.value, f"{attack.victim}, about {attack.about}")
        victim = self.address(attack.victim)
        stranger = self.stranger
        if attack.kind is Attack.FLOOD:
            stranger.flood(victim)
        elif attack.kind is Attack.CLAIM:
            stranger.claim(victim, attack.about)
        elif attack.kind is Attack.REFLECT:
            stranger.reflect(victim, self.address("bystander"), attack.about)
        elif attack.kind is Attack.REPLAY:
            stranger.replay()
        elif attack.kind is Attack.JOIN:
            if not self.sim.nodes["guesser"].is_running:
                self.sim.nodes["guesser"].start()
        elif attack.about in self.agents:
            machine = self.agents[attack.about]._machine
            assert machine is not None
            stranger.accuse(victim, machine._member_table.local)

    # What must hold.

    def check(self) -> None:
        require(not self.failures, f"a stranger had its way: {self.failures}")
        require(self.bystander_bytes == 0, f"a bystander got {self.bystander_bytes} bytes")
        instances = {agent.service.incarnation for agent in self.agents.values()}
        for name, agent in self.agents.items():
            strange = [member for member in agent.members if member.instance not in instances]
            honest = [member for member in strange if member.name in self.started]
            # One that has just started is not known to this test before its start returns.
            unknown = [
                member for member in strange if member not in honest or member.name in self.agents
            ]
            require(not unknown, f"{name} lists {', '.join(map(str, unknown))}")
        if self.plan.has_secret:
            twice = [note for note, count in self.notes.items() if count > 1]
            require(not twice, f"heard twice: {twice[:3]}")
        self._check_known()

    def _check_known(self) -> None:
        """Whoever was there for a while is known to all, throughout."""
        now = self.sim.now
        settled = {name for name, since in self.started.items() if now - since > _KNOWN_S}
        for name in settled:
            if name not in self.agents:
                raise LivenessFailure(f"{name} has not joined after {_KNOWN_S:g} s")
            members = {member.name for member in self.agents[name].members}
            if not settled <= members:
                raise LivenessFailure(f"{name} does not know {sorted(settled - members)}")


@contextmanager
def eavesdropping(world: World) -> Iterator[None]:
    """Have the stranger hear every datagram between the honest nodes."""
    send = unicast.DatagramService._send

    def record(self: Any, target: Address, body: bytes, resolved: tuple[str, int]) -> None:
        transport = self._transport
        self._transport = _Tap(transport, world.stranger.recorded)
        try:
            send(self, target, body, resolved)
        finally:
            self._transport = transport

    unicast.DatagramService._send = record  # type: ignore[method-assign]
    try:
        yield
    finally:
        unicast.DatagramService._send = send  # type: ignore[method-assign]


class _Tap:
    """Stands in for a transport, and keeps what is sent."""

    def __init__(self, transport: Any, recorded: list[tuple[bytes, Address]]) -> None:
        self._transport = transport
        self._recorded = recorded

    def sendto(self, data: bytes, target: tuple[str, int]) -> None:
        self._recorded.append((data, Address(*target[:2])))
        self._transport.sendto(data, target)


def run_hostile(simulation: Simulation) -> None:
    """Attacks for a while, during and after which the honest nodes know each other and no other."""
    plan = draw_plan(simulation.rng)
    attacks = simulation.optional("attacks", plan.attacks)
    plan = msgspec.structs.replace(plan, attacks=list(attacks))
    rng = Random(simulation.rng.getrandbits(64))
    with SimCluster(simulation) as sim:
        world = World(sim, plan, rng)
        with eavesdropping(world):
            world.agenda.run(_ATTACKED_S + _KNOWN_S + 1)
