"""A run: two services, the network between them, faults, requests and checks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from postroad.core.timing import NEVER
from postroad.net import MessagingService
from postroad.net.connections.connection import PeerConnection
from postroad.testing import LivenessFailure, SafetyFailure, SimCluster, SimNode, Simulation
from postroad.testing import require as ensure
from postroad.testing.simulation.network.transport import MemoryTransport
from postroad.testing.simulation.node import NodeProgram
from postroad.wire import ConnectionRole, ConnectionState
from tests.simulation.plans import Agenda
from tests.simulation.wire.calls import Calls
from tests.simulation.wire.plan import (
    ACTIVE_S,
    END_S,
    HEALED_S,
    PROBE_TIMEOUT_S,
    STOP_GRACE_S,
    Fault,
    Job,
    Kind,
    Plan,
    PlannedFault,
    draw_plan,
)

CLIENT, SERVER = ConnectionRole.CLIENT, ConnectionRole.SERVER
_PORT = 7000
_CHECK_S = 0.05
_PROBES = 3
_PROBE = Job(HEALED_S, Kind.ECHO, b"probe", PROBE_TIMEOUT_S, 0.0, 16, None, False)
# Delays, retransmissions and rounding of a round trip.
_SLACK_S = 0.7
# An undisturbed handshake takes no longer, however its bytes arrive.
_HANDSHAKE_S_MAX = 0.5
# From the closing of a connection to the end of its socket.
_LINGER_S = 1.0


def run_wire(simulation: Simulation) -> None:
    """Requests and faults, then healing, then every request must succeed."""
    plan = draw_plan(simulation.rng)
    plan = msgspec.structs.replace(
        plan,
        faults=simulation.optional("faults", plan.faults),
        jobs=simulation.optional("jobs", plan.jobs),
    )
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = World(sim, plan)
        world.agenda.run(until=HEALED_S)
        world.heal()
        world.agenda.run(until=HEALED_S + 1.0)
        for _ in range(_PROBES):
            world.submit(_PROBE, is_probe=True)
        world.agenda.run(until=END_S)
        world.check_end()


class Intervals:
    """Times in which something was wrong."""

    def __init__(self) -> None:
        self._intervals: list[tuple[float, float]] = []

    def add(self, start: float, end: float) -> None:
        self._intervals.append((start, end))

    def total_s(self, start: float, end: float) -> float:
        """Seconds between the two times that at least one interval covers."""
        total, covered = 0.0, start
        for first, last in sorted(self._intervals):
            first, last = max(first, covered), min(last, end)
            total += max(0.0, last - first)
            covered = max(covered, last)
        return total


class World:
    """Client, server and the faults between them."""

    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        self.sim = sim
        self.plan = plan
        self.calls = Calls(sim, plan)
        self.agenda = Agenda(sim)
        self._services: dict[ConnectionRole, MessagingService] = {}
        # Protocol errors of each service that were judged.
        self._judged: dict[MessagingService, dict[str, int]] = {}
        self._disturbances = Intervals()
        self._pauses = Intervals()
        # Connections of then are silent for ever, however short it was.
        self._power_losses: list[float] = []
        self._blocked_until = 0.0
        self._stopping: set[ConnectionRole] = set()
        sim.network.set_conditions(delay_s=(0.0, plan.delay_s_max))
        for role in ConnectionRole:
            sim.add(role.value, self._program(role)).start()
        for job in plan.jobs:
            self.agenda.at(job.time, lambda job=job: self.submit(job))  # type: ignore[misc]
        for fault in plan.faults:
            self.agenda.at(fault.time, lambda fault=fault: self._apply(fault))  # type: ignore[misc]
        sim.call_every(_CHECK_S, self._check)

    def _program(self, role: ConnectionRole) -> NodeProgram:
        side = self.plan.sides[role]

        async def run(node: SimNode) -> None:
            service = MessagingService(
                "simulated",
                role.value,
                f"{node.host}:{_PORT}",
                limits=side.limits,
                protocol=side.protocol,
            )
            if role is SERVER:
                self.calls.register_handlers(service)
            async with service:
                self._services[role] = service
                await asyncio.Event().wait()

        return run

    def _node(self, role: ConnectionRole) -> SimNode:
        return self.sim.nodes[role.value]

    def submit(self, job: Job, *, is_probe: bool = False) -> None:
        service, node = self._services.get(CLIENT), self._node(CLIENT)
        if service is not None and node.is_running:
            address = f"{self._node(SERVER).host}:{_PORT}"
            self.sim.spawn(self.calls.submit(service, address, job, is_probe=is_probe), node)

    # Faults.

    def _apply(self, fault: PlannedFault) -> None:
        node, until = self._node(fault.side), self.sim.now + fault.lasting_s
        self.sim.log.add("fault", fault.kind.value, f"{fault.side.value}, {fault.lasting_s:.3f} s")
        if fault.kind is Fault.RESET:
            self.sim.network.reset_connections(CLIENT.value, SERVER.value)
        elif fault.kind is Fault.FLIP:
            self._flip()
        elif fault.kind is Fault.VANISH:
            self._block(fault, HEALED_S)
            if fault.is_both_ways:
                self._expect_detection(ConnectionRole)
        elif fault.kind is Fault.STALL:
            self._block(fault, until)
        elif fault.kind is Fault.SLOW_READER:
            self._disturbances.add(self.sim.now, until)
            self.sim.network.slow_reader(node.name, fault.bytes_per_s)
            self.agenda.at(until, lambda: self.sim.network.slow_reader(node.name, None))
        elif fault.kind is Fault.POWER:
            self._disturbances.add(self.sim.now, until)
            self._power_losses.append(self.sim.now)
            self._expect_detection([CLIENT])
            self._node(SERVER).lose_power()
            self.agenda.at(until, lambda: self._start(SERVER))
        elif not node.is_running:
            return
        elif fault.kind is Fault.PAUSE:
            self._disturbances.add(self.sim.now, until)
            self._pauses.add(self.sim.now, until)
            node.pause(fault.lasting_s)
        elif fault.side not in self._stopping:
            # A second signal would cancel the handlers that a stop waits for.
            self._stopping.add(fault.side)
            node.stop()
            self.agenda.at(until + STOP_GRACE_S, lambda: self._start(fault.side))

    def _start(self, role: ConnectionRole) -> None:
        self._stopping.discard(role)
        if not self._node(role).is_running:
            self._node(role).start()

    def _block(self, fault: PlannedFault, until: float) -> None:
        self._disturbances.add(self.sim.now, until)
        self._blocked_until = max(self._blocked_until, until)
        source = fault.side.opposite.value
        one_way = not fault.is_both_ways
        self.sim.network.partition(source, fault.side.value, one_way=one_way)
        self.agenda.at(until, self._unblock)

    def _unblock(self) -> None:
        if self.sim.now >= self._blocked_until:
            self.sim.network.heal()

    def _flip(self) -> None:
        """Flip a bit of the next bytes that are on their way."""
        for transport in self.sim.network.host(CLIENT.value).sockets:
            if not isinstance(transport, MemoryTransport):
                continue
            for pipe in (transport.outgoing, transport.outgoing.target.outgoing):
                for index, segment in enumerate(pipe._in_flight):
                    if isinstance(segment, bytes):
                        position = self.sim.rng.randrange(len(segment))
                        bit = 1 << self.sim.rng.randrange(8)
                        changed = bytearray(segment)
                        changed[position] ^= bit
                        pipe._in_flight[index] = bytes(changed)
                        self.calls.is_tainted = True
                        self.sim.log.add("fault", "flipped", f"bit {bit} of byte {position}")
                        return
        if self.sim.now < ACTIVE_S:
            self.agenda.after(0.001, self._flip)

    def heal(self) -> None:
        network = self.sim.network
        network.heal()
        for role in ConnectionRole:
            network.slow_reader(role.value, None)
            self._node(role).resume()
            self._start(role)
        # With heartbeats off, nobody can detect that a connection is useless.
        network.reset_connections(CLIENT.value, SERVER.value)

    # Checks.

    def _connections(self, role: ConnectionRole) -> Iterable[PeerConnection]:
        service = self._services.get(role)
        if service is None or not hasattr(service, "_pool"):
            return []
        return [*service._pool.connections, *service._acceptor.connections]

    def _expect_detection(self, roles: Iterable[ConnectionRole]) -> None:
        """Open connections with heartbeats must be closed in time: their peer is gone."""
        for role in roles:
            for connection in self._connections(role):
                if connection.wire.state is ConnectionState.OPEN:
                    self._check_detected(self.sim.now, self._node(role).starts, role, connection)

    def _check_detected(
        self, start: float, process: int, role: ConnectionRole, connection: PeerConnection
    ) -> None:
        """Fail if the timeout has passed, not counting the time in which it did not read.

        A process that has ended need not detect anything.
        """
        wire, now = connection.wire, self.sim.now
        since = now if wire._reads_paused else max(start, wire._last_read)
        latest = since + 2 * wire._heartbeats.timeout_s + _LINGER_S + _SLACK_S
        was_paused = self._pauses.total_s(start, now) > 0
        node = self._node(role)
        has_ended = not node.is_running or node.starts != process
        if has_ended or connection.transport is None or latest >= HEALED_S or was_paused:
            return
        if now >= latest - 0.001:
            raise LivenessFailure(f"{connection} does not detect that its peer is gone")
        self.agenda.at(latest, lambda: self._check_detected(start, process, role, connection))

    def _check(self) -> None:
        paused_s = self._pauses.total_s(0.0, self.sim.now)
        self.calls.check_deadlines(_SLACK_S + paused_s)
        for role, service in self._services.items():
            if not self.calls.is_tainted:
                self._check_protocol_errors(role, service)
                self._check_versions(role)
            self._check_memory(role, service)

    def _check_protocol_errors(self, role: ConnectionRole, service: MessagingService) -> None:
        judged = self._judged.setdefault(service, {})
        statistics = service.statistics()
        for kind, count in statistics.protocol_errors_by_kind.items():
            if count > judged.get(kind, 0):
                judged[kind] = count
                if not self._is_excused(role, kind):
                    raise SafetyFailure(f"the {role.value} counted a {kind} without a reason")
        ensure(statistics.frames_ignored == 0, f"the {role.value} ignored a frame")
        late, abandoned = statistics.replies_late, self.calls.abandoned
        ensure(late <= abandoned, f"{late} late replies to {abandoned} abandoned calls")

    def _is_excused(self, role: ConnectionRole, kind: str) -> bool:
        if kind == "FrameTooLargeError":
            # Versions 1 and 2 do not send their limits.
            return self.plan.version < 3
        return kind == "PeerTimeoutError" and self._is_silence_excused(role)

    def _is_silence_excused(self, role: ConnectionRole) -> bool:
        """Whether something was wrong for about as long as a timeout of this side lasts."""
        limits, now = self.plan.sides[role].limits, self.sim.now
        timeouts = [
            (limits.handshake_timeout_s, limits.handshake_timeout_s - _HANDSHAKE_S_MAX),
            (limits.frame_timeout_s, limits.frame_timeout_s - _HANDSHAKE_S_MAX),
        ]
        for side in self.plan.sides.values():
            # A side is quiet for a third of the timeout at most.
            timeout_s = side.limits.heartbeat_timeout_s or NEVER
            timeouts.append((timeout_s, timeout_s * 2 / 3))
        for timeout_s, patience_s in timeouts:
            if timeout_s == NEVER:
                continue
            start = now - timeout_s - 2 * _SLACK_S
            if self._disturbances.total_s(start, now) >= patience_s - _SLACK_S:
                return True
            if any(lost_at >= start for lost_at in self._power_losses):
                return True
        return False

    def _check_versions(self, role: ConnectionRole) -> None:
        for connection in self._connections(role):
            version = connection.wire.version
            expected = self.plan.version
            ensure(version in (0, expected), f"version {version} was negotiated, not {expected}")

    def _check_memory(self, role: ConnectionRole, service: MessagingService) -> None:
        """Unfinished frames hold no more than the peers may send."""
        limit = self.plan.sides[role].limits.frame_bytes_max
        frames = len(list(self._connections(role)))
        held = service.statistics().unfinished_bytes
        ensure(held <= frames * limit, f"the {role.value} holds {held} bytes of {frames} frames")

    def check_end(self) -> None:
        """All calls have ended, those after the healing have replies, and nothing is left."""
        self.calls.check_deadlines(0.0)
        self.calls.check_end()
        for role, service in self._services.items():
            statistics = service.statistics()
            pending, running = statistics.requests_pending, statistics.handlers_running
            ensure(pending == running == 0, f"{role.value}: {pending} pending, {running} running")
