"""Puts a run together: two processes, the network between them, faults, work and checks."""

from __future__ import annotations

from itertools import count

import msgspec

from postroad.core import Address
from postroad.testing import LivenessFailure, Simulation
from postroad.wire import (
    NEVER,
    BufferCache,
    ConnectionRole,
    HelloFrame,
    WireConfig,
    encode_preamble,
)
from postroad.wire.compression import load_algorithm
from tests.simulation.wire.client import Client
from tests.simulation.wire.endpoint import Endpoint
from tests.simulation.wire.link import Link
from tests.simulation.wire.messages import End
from tests.simulation.wire.plan import (
    END_S,
    HEALED_S,
    PROBE_TIMEOUT_S,
    Fault,
    Job,
    Kind,
    PlannedFault,
    draw_plan,
)
from tests.simulation.wire.process import Process
from tests.simulation.wire.server import Server

CLUSTER = "simulated"
PROBES = 3
PROBE = Job(HEALED_S, Kind.ECHO, b"probe", PROBE_TIMEOUT_S, 0.0, 16, None)


def run_wire(simulation: Simulation) -> None:
    """Work and faults, then healing, then everything must be answered."""
    world = World(simulation)
    timeline = simulation.timeline
    timeline.run(until=HEALED_S)
    simulation.log.add("network", "healed")
    world.client.start_over()
    timeline.run(until=HEALED_S + 1.0)
    for _ in range(PROBES):
        world.client.submit(PROBE, is_probe=True)
    timeline.run(until=END_S)
    world.check_end()


class World:
    def __init__(self, simulation: Simulation) -> None:
        plan = draw_plan(simulation.rng)
        self.plan = msgspec.structs.replace(
            plan,
            faults=simulation.optional("faults", plan.faults),
            jobs=simulation.optional("jobs", plan.jobs),
        )
        self._simulation = simulation
        self._next_id = count(1).__next__
        self._processes = {role: Process(simulation, role.value) for role in ConnectionRole}
        self._links = count(1)
        self._configs = {role: self._make_config(role) for role in ConnectionRole}
        self.client = Client(
            simulation, self.plan, self._processes[ConnectionRole.CLIENT], self._dial, self._next_id
        )
        self._server = Server(simulation, self._processes[ConnectionRole.SERVER], self.client.calls)
        simulation.log.add("plan", "seed", f"{simulation.seed}: {self.plan.name}")
        self._schedule()

    def _make_config(self, role: ConnectionRole) -> WireConfig:
        side = self.plan.sides[role]
        address = Address("127.0.0.1", 26_500 + (role is ConnectionRole.SERVER))
        return WireConfig(
            profile=side.profile,
            preamble=encode_preamble(CLUSTER),
            hello=HelloFrame(
                cluster=CLUSTER,
                name=role.value,
                incarnation=1,
                address=address,
                frame_bytes_max=side.limits.frame_bytes_max,
                requests_pending_max=side.limits.requests_pending_max,
                heartbeat_timeout_ms=round(side.limits.heartbeat_timeout_s * 1_000),
                compressions=side.compressions,
            ),
            advertised_ip=address.host,
            limits=side.limits,
            wall_clock=lambda: round(self._simulation.now * 1_000),
            buffer_cache=BufferCache(),
            algorithms={name: load_algorithm(name) for name in side.compressions},
            heartbeat_payload=side.heartbeat_payload,
        )

    def _schedule(self) -> None:
        at = self._processes[ConnectionRole.CLIENT].at
        at(0.0, self.client.connect)
        for job in self.plan.jobs:
            at(job.time, lambda job=job: self.client.submit(job))  # type: ignore[misc]
        for fault in self.plan.faults:
            self._simulation.timeline.at(fault.time, lambda fault=fault: self._apply(fault))  # type: ignore[misc]
        if self.plan.goodbye is not None:
            who, time = self.plan.goodbye
            say = self.client.say_goodbye if who is ConnectionRole.CLIENT else self._stop_serving
            self._processes[who].at(time, say)

    # Connections.

    def _dial(self) -> Endpoint:
        link = Link(self._simulation, self.plan, self._processes.values(), next(self._links))
        endpoint = self._make_endpoint(link, ConnectionRole.CLIENT)
        self._processes[ConnectionRole.SERVER].do(
            lambda: link.attach(self._make_endpoint(link, ConnectionRole.SERVER))
        )
        link.attach(endpoint)
        return endpoint

    def _make_endpoint(self, link: Link, role: ConnectionRole) -> Endpoint:
        has_certificate = self.plan.sides[role.opposite].has_certificate
        return Endpoint(
            self._simulation,
            self._processes[role],
            link,
            role,
            self._configs[role],
            self.client if role is ConnectionRole.CLIENT else self._server,
            next_id=self._next_id,
            certificate_names=frozenset({role.opposite.value}) if has_certificate else None,
        )

    def _stop_serving(self) -> None:
        link = self._current_link()
        if link is not None and ConnectionRole.SERVER in link.endpoints:
            self._server.say_goodbye(link.endpoints[ConnectionRole.SERVER])

    def _current_link(self) -> Link | None:
        return None if self.client.endpoint is None else self.client.endpoint.link

    # Faults.

    def _apply(self, fault: PlannedFault) -> None:
        if fault.kind is Fault.PAUSE:
            self._processes[fault.side].pause(fault.lasting_s)
            return
        link = self._current_link()
        if link is None:
            return
        is_both_ways = fault.is_both_ways and fault.kind in (Fault.STALL, Fault.VANISH)
        receivers = tuple(ConnectionRole) if is_both_ways else (fault.side,)
        names = " and ".join(role.value for role in receivers)
        self._simulation.log.add("network", fault.kind.value, f"#{link.number} to {names}")
        self._apply_to(link, fault, receivers)

    def _apply_to(
        self, link: Link, fault: PlannedFault, receivers: tuple[ConnectionRole, ...]
    ) -> None:
        pipe = link.pipes[fault.side]
        if fault.kind is Fault.CUT:
            pipe.break_after(fault.after_bytes, lambda: link.cut(told=tuple(ConnectionRole)))
        elif fault.kind is Fault.HALF_CUT:
            pipe.break_after(fault.after_bytes, lambda: link.cut(told=(fault.side,)))
        elif fault.kind is Fault.STALL:
            link.stall(receivers, self._simulation.now + fault.lasting_s)
        elif fault.kind is Fault.VANISH:
            link.stall(receivers, NEVER)
        elif fault.kind is Fault.SLOW_READER:
            link.slow_down(fault.side, fault.lasting_s)
        elif fault.kind is Fault.FLIP:
            pipe.flip_after(fault.after_bytes, lambda: self._taint(link))

    def _taint(self, link: Link) -> None:
        link.ledger.is_tainted = True
        self._simulation.log.add("network", "flipped", f"#{link.number} a bit")

    def check_end(self) -> None:
        """All calls have ended, and those after the healing were answered."""
        for call in self.client.calls.values():
            if call.end is None and not call.is_one_way:
                raise LivenessFailure(f"call {call.id} has not ended")
            if call.is_probe and call.end is not End.ANSWERED:
                raise LivenessFailure(f"call {call.id} was not answered after the healing")
