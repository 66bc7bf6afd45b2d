"""The cluster agent: runs the membership state machine over the network.

After every input it sends the packets of the state machine, publishes its events, and sets one
timer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Mapping

import msgspec

from postroad.cluster.discovery import Discovery, DiscoveryStatistics, StaticDiscovery
from postroad.cluster.events import MembershipEventStream, MembershipListener, MembershipListeners
from postroad.cluster.membership import (
    Member,
    Membership,
    MembershipConfig,
    MembershipCounters,
    MembershipEvent,
    MembershipEventType,
    MembershipPhase,
    MembershipUpdate,
    MemberState,
    NameConflictDetected,
    NameConflictLost,
    validate_properties,
)
from postroad.cluster.transport import PacketTransport
from postroad.core import Address, Lifecycle, ThrottledLogger
from postroad.core.errors import (
    ConfigError,
    DuplicateNamePeerError,
    MemberNotFoundError,
    NameConflictError,
    NotRunningError,
    UsageError,
)
from postroad.core.timing import NEVER
from postroad.net import DatagramService, MessagingService, RawMessage
from postroad.net.datagrams import DatagramHandler

logger = logging.getLogger("postroad.cluster")

SUBJECT = "cluster.membership"
# Similar warnings are logged once in this many seconds.
_WARN_INTERVAL_S = 10.0
_NAMES_LOGGED = 10


class ClusterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A node's view of its cluster at one moment."""

    members: int
    """Members, this node included."""
    suspects: int
    local_health: int
    """Local health score; 0 is healthy."""
    counters: MembershipCounters
    streams_failed: int
    """Packets that could not be delivered over TCP."""
    streams_dropped: int
    """Packets that were not sent because too many were in flight."""
    round_trips_s: dict[str, float]
    """Smoothed round-trip time, by member."""
    discovery: DiscoveryStatistics


class ClusterAgent(Lifecycle):
    """Joins the cluster, keeps this node a member, and knows the other members.

        async with ClusterAgent(service, StaticDiscovery(["10.0.0.1:26502"])) as agent:
            print([str(member) for member in agent.members])

    Args:
        service: the started messaging service of this node; its name is the member's name.
        discovery: source of seed addresses; without it this node waits for others to join it.
        properties: properties of this node that others can read.
        config: times, counts and sizes.
        datagrams: whether gossip uses UDP, at the port of the service. The default is True, or
            False if the service uses TLS, which datagrams would bypass.
    """

    def __init__(
        self,
        service: MessagingService,
        discovery: Discovery | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        config: MembershipConfig | None = None,
        datagrams: bool | None = None,
    ) -> None:
        if not isinstance(service, MessagingService):
            raise ConfigError(f"service must be a MessagingService, not {service!r}")
        if discovery is not None and not isinstance(discovery, Discovery):
            raise ConfigError(
                f"cannot use {discovery!r} as discovery: for addresses pass StaticDiscovery([...])"
            )
        if datagrams and service.uses_tls:
            raise ConfigError("datagrams would bypass TLS; leave datagrams off")
        self.service = service
        config = config or MembershipConfig()
        # Packets fit into frames of the connection.
        stream_bytes_max = min(config.stream_bytes_max, service.limits.frame_bytes_max // 2)
        self.config = msgspec.structs.replace(config, stream_bytes_max=stream_bytes_max)
        self._discovery = StaticDiscovery([]) if discovery is None else discovery
        self._properties = validate_properties(properties or {}, self.config)
        self._uses_datagrams = not service.uses_tls if datagrams is None else datagrams
        self._listeners = MembershipListeners()
        self._transport = PacketTransport(service, self._on_reply, self._on_duplicate_name_peer)
        self._transport.subscribe(SUBJECT, self._on_datagram)
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        # Why this node is no longer a member, if it did not leave by itself.
        self.failure: NameConflictError | None = None
        self._is_stopped = False
        self._is_subscribed = False
        # Tasks that run until the agent stops.
        self._tasks: dict[asyncio.Future[object], None] = {}
        # The task that closes the agent, once that has started.
        self._close_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        # Probes acknowledged over TCP only, as far as they were logged.
        self._logged_by_stream = 0
        # Set by start.
        self._loop: asyncio.AbstractEventLoop
        self._machine: Membership | None = None
        self._joined: asyncio.Future[None]
        self._closed: asyncio.Future[None]

    # Lifecycle.

    async def start(self) -> None:
        """Join the cluster.

        Returns once a seed has replied, or after `join_timeout_s` if none does: this node then is a
        member of a cluster of its own and keeps trying the seeds.

        Raises:
            NameConflictError: another live node of the cluster has this node's name.
            NotRunningError: the agent was stopped meanwhile.
        """
        if self._machine is not None:
            raise UsageError(f"{self!r} was started already; create a new one")
        self._loop = asyncio.get_running_loop()
        self._joined = self._loop.create_future()
        self._closed = self._loop.create_future()
        self._machine = machine = Membership(
            self.service.name,
            self.service.address,
            instance=self.service.incarnation,
            incarnation=time.time_ns() // 1_000_000,
            secret=secrets.token_bytes(16),
            rng=random.SystemRandom(),
            # Peers prove their names by a certificate, or that they know the cluster's secret.
            proves_names=self.service.uses_tls or self.service.is_closed,
            properties=self._properties,
            config=self.config,
        )
        try:
            try:
                self.service.serve(SUBJECT, self._on_request)
            except ConfigError:
                raise UsageError(f"service {self.service.name!r} has an agent already") from None
            self.service.set_duplicate_name_callback(self._on_duplicate_name_caller)
            self._is_subscribed = True
            if self._uses_datagrams:
                await self._transport.open_datagrams()
            if self._is_stopped:
                # `stop` ran before the socket existed.
                await self._transport.close()
                raise self._stopped_while_starting()
            machine.start(self._loop.time())
            self._process_outputs()
            await self._discovery.start(self.service.name, self.service.address, self._on_seeds)
            await asyncio.shield(self._joined)
        except BaseException:
            self._leave()
            await self._start_closing()
            raise
        if self.failure is not None:
            await self._start_closing()
            raise self.failure
        if self._is_stopped:
            raise self._stopped_while_starting()
        self._log_joined()

    def _log_joined(self) -> None:
        names = [member.name for member in self.members]
        if len(names) > 1 or not self._discovery.statistics().seeds:
            more = f" and {len(names) - _NAMES_LOGGED} more" if len(names) > _NAMES_LOGGED else ""
            listed = ", ".join(names[:_NAMES_LOGGED])
            logger.info("%s joined the cluster; members: %s%s", self.service.name, listed, more)
            return
        reason = self._transport.last_failure
        logger.warning(
            "%s joined alone and keeps trying: no seed has replied%s",
            self.service.name,
            f"; last error: {reason}" if reason else "",
        )

    async def stop(self) -> None:
        """Leave the cluster and stop."""
        if self._machine is not None:
            self._leave()
            await self._start_closing()

    def _leave(self) -> None:
        machine = self._running_machine()
        machine.leave()
        self._process_outputs()

    def _stopped_while_starting(self) -> NotRunningError:
        return NotRunningError(f"agent of {self.service.name!r} was stopped during its start")

    def _start_closing(self) -> asyncio.Future[None]:
        """Close in a separate task, which ends even if the caller is cancelled."""
        if self._close_task is None:
            self._is_stopped = True
            self._close_task = self._loop.create_task(self._close())
        return asyncio.shield(self._close_task)

    async def _close(self) -> None:
        """Send what is queued, the leave included, then close."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_subscribed:
            self.service.unsubscribe(SUBJECT)
            self.service.set_duplicate_name_callback(None)
            self.service.set_hello_membership(False)
        await self._transport.drain()
        self._listeners.close(self.failure)
        for task in list(self._tasks):
            task.cancel()
        try:
            await self._discovery.stop()
        except Exception:
            logger.exception("%s: stopping the discovery failed", self.service.name)
        await self._transport.close()
        for future in (self._joined, self._closed):
            if not future.done():
                future.set_result(None)

    async def wait_closed(self) -> None:
        """Return once this node has left; raises NameConflictError if it had to."""
        self._running_machine()
        await asyncio.shield(self._closed)
        if self.failure is not None:
            raise self.failure

    # Queries.

    @property
    def local_member(self) -> Member:
        """This node as a member."""
        return self._running_machine().local_member

    @property
    def members(self) -> list[Member]:
        """All members, this node first, suspected ones included."""
        return self._running_machine().members()

    def member(self, name: str) -> Member | None:
        """Return the member with this name, or None."""
        return self._running_machine().member(name)

    def names_at(self, address: Address) -> list[str]:
        """Return the members at this address: one or none, unless two claim it."""
        return self._running_machine().names_at(address)

    @property
    def datagram_service(self) -> DatagramService | None:
        """The datagram service of this node; None if datagrams are off."""
        self._running_machine()
        return self._transport.datagrams

    def subscribe_datagrams(self, subject: str, listener: DatagramHandler) -> None:
        """Call `listener(message)` for datagrams to the subject; also possible before the start."""
        self._transport.subscribe(subject, listener)

    def unsubscribe_datagrams(self, subject: str) -> None:
        """Remove the listeners of the subject."""
        self._transport.unsubscribe(subject)

    def create_task(self, awaitable: Awaitable[object]) -> asyncio.Future[object]:
        """Run an awaitable until it ends or the agent stops, which cancels it."""
        task = asyncio.ensure_future(awaitable)
        if self._is_stopped:
            task.cancel()
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def statistics(self) -> ClusterStatistics:
        """Return statistics of this moment."""
        machine = self._running_machine()
        members = machine.members()
        return ClusterStatistics(
            members=len(members),
            suspects=sum(member.state is MemberState.SUSPECT for member in members),
            local_health=machine.health,
            counters=msgspec.structs.replace(
                machine.counters, rejected=dict(machine.counters.rejected)
            ),
            streams_failed=self._transport.failed,
            streams_dropped=self._transport.dropped,
            round_trips_s=machine.round_trips_s(),
            discovery=self._discovery.statistics(),
        )

    def events(self) -> MembershipEventStream:
        """Return a stream of all events from now on, for `async for`."""
        return self._listeners.open_stream()

    def add_listener(self, listener: MembershipListener) -> None:
        """Call `listener(event)` for every event."""
        self._listeners.add(listener)

    def remove_listener(self, listener: MembershipListener) -> None:
        """Stop calling the listener."""
        self._listeners.remove(listener)

    # Changes.

    def set_properties(self, changes: Mapping[str, str | None]) -> None:
        """Merge changes into this node's properties; None removes a property."""
        if self._is_stopped:
            raise UsageError(f"the agent of {self.service.name!r} was stopped")
        if self._machine is None:
            merged = {**self._properties, **changes}
            remaining = {key: value for key, value in merged.items() if value is not None}
            self._properties = validate_properties(remaining, self.config)
        else:
            self._machine.set_properties(changes, self._loop.time())
            self._process_outputs()

    def contact(self, address: Address) -> None:
        """Query an unknown node at the address: it may be a member that this node does not know."""
        self._running_machine().contact(address, self._loop.time())
        self._process_outputs()

    def _running_machine(self) -> Membership:
        if self._machine is None:
            raise UsageError(f"{self!r} is not running; call start() first")
        return self._machine

    # Inputs.

    def _on_seeds(self, seeds: frozenset[Address]) -> None:
        self._running_machine().set_seeds(seeds, self._loop.time())
        self._process_outputs()

    def _on_request(self, message: RawMessage) -> bytes:
        if message.peer is None and self.service.uses_tls:
            raise MemberNotFoundError(
                "membership packet rejected: over TLS it must come from a node with a certificate"
            )
        reply = self._receive(message.payload, message.sender, in_stream=True)
        self._process_outputs()
        return reply or b""

    def _on_datagram(self, message: RawMessage) -> None:
        origin = message.source or message.sender
        reply = self._receive(message.payload, message.sender, origin=origin)
        if reply is not None:
            # The reply goes to the real source: the advertised address may be forged.
            self._transport.send_datagram(origin, SUBJECT, reply)
        self._process_outputs()

    def _on_reply(self, address: Address, payload: bytes) -> None:
        self._receive(payload, address, in_stream=True, is_reply=True)
        self._process_outputs()

    def _receive(
        self,
        payload: bytes,
        source: Address,
        *,
        in_stream: bool = False,
        is_reply: bool = False,
        origin: Address | None = None,
    ) -> bytes | None:
        machine = self._running_machine()
        reply = machine.receive(
            payload,
            source,
            self._loop.time(),
            in_stream=in_stream,
            is_reply=is_reply,
            origin=origin,
        )
        for reason in machine.drain_rejections():
            self._warn(reason, "%s: rejected gossip from %s: %s", self.service.name, source, reason)
        return reply

    def _on_duplicate_name_peer(self, address: Address, rival: DuplicateNamePeerError) -> None:
        self._running_machine().on_duplicate_name_peer(
            address, rival.incarnation, self._loop.time(), is_member=rival.is_member
        )
        self._process_outputs()

    def _on_duplicate_name_caller(self, address: Address, instance: int) -> None:
        self._running_machine().on_duplicate_name_caller(address, instance, self._loop.time())
        self._process_outputs()

    def _tick(self) -> None:
        self._timer = None
        try:
            self._running_machine().tick(self._loop.time())
        finally:
            self._process_outputs()

    # Outputs.

    def _process_outputs(self) -> None:
        """Send packets, publish events and set the timer."""
        machine = self._running_machine()
        try:
            for send in machine.drain_outgoing():
                self._transport.send(send, SUBJECT, timeout_s=self.config.probe_timeout_s)
            for event in machine.drain_events():
                self._publish(event)
        finally:
            # A failing send or listener must not stop the protocol.
            self._set_timer(machine.deadline())
        if machine.phase is MembershipPhase.MEMBER and not self._joined.done():
            self.service.set_hello_membership(True)
            self._joined.set_result(None)
        self._warn_of_blocked_datagrams(machine.counters.probes_by_stream)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            if self._timer_at == deadline:
                return
            self._timer.cancel()
            self._timer = None
        if deadline < NEVER and not self._is_stopped:
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._tick)

    def _publish(self, event: MembershipUpdate) -> None:
        if isinstance(event, MembershipEvent):
            # Properties change often, and no operator has to act on that.
            is_metadata = event.kind is MembershipEventType.METADATA
            level = logging.DEBUG if is_metadata else logging.INFO
            logger.log(level, "%s: %s", self.service.name, event)
            self._listeners.publish(event)
        elif isinstance(event, NameConflictDetected):
            self._warn(
                "contested",
                "%s: name conflict: a second node with this name at %s was rejected",
                self.service.name,
                event.rival,
            )
        else:
            self._on_name_conflict_lost(event)

    def _on_name_conflict_lost(self, conflict: NameConflictLost) -> None:
        """Leave because another live node keeps this node's name."""
        self.failure = NameConflictError(self.service.name, str(conflict.holder))
        if not self._joined.done():
            # `start` raises the error.
            self._joined.set_result(None)
            return
        logger.error("%s", self.failure)
        self._start_closing()

    def _warn_of_blocked_datagrams(self, by_stream: int) -> None:
        if by_stream > self._logged_by_stream and self._uses_datagrams:
            self._logged_by_stream = by_stream
            self._warn(
                "datagrams",
                "%s: a member acknowledges over TCP but not over UDP; are datagrams blocked?",
                self.service.name,
            )

    def _warn(self, key: str, text: str, *args: object) -> None:
        self._log.log(key, self._loop.time(), text, *args)

    def __repr__(self) -> str:
        if self._machine is None:
            return f"<ClusterAgent {self.service.name} not started>"
        members = len(self._machine.members())
        return f"<ClusterAgent {self.service.name} {self._machine.phase.value}, {members} members>"
