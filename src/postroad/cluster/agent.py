"""Runs the membership machine over the network.

The rule of the glue: after anything happened, send what the machine wants sent, tell of what
changed, and keep one timer.
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
    NEVER,
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
from postroad.cluster.transport import DatagramListener, PacketTransport
from postroad.core import Address, Lifecycle, ThrottledLogger
from postroad.core.errors import (
    ConfigError,
    DuplicateNamePeerError,
    MemberNotFoundError,
    NameConflictError,
    NotRunningError,
    UsageError,
)
from postroad.net import DatagramService, MessagingService, RawMessage

logger = logging.getLogger("postroad.cluster")

SUBJECT = "cluster.membership"
# Similar warnings are told once in so many seconds.
_WARN_INTERVAL_S = 10.0
_NAMES_TOLD = 10


class ClusterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A node's cluster at one moment."""

    members: int
    """Members, this node included."""
    suspects: int
    health: int
    """How much this node doubts itself; 0 is well."""
    counters: MembershipCounters
    streams_failed: int
    """Packets that could not be delivered over TCP."""
    streams_dropped: int
    """Packets that were not sent, because too many were under way."""
    round_trips_s: dict[str, float]
    """Time to members and back."""
    discovery: DiscoveryStatistics


class ClusterAgent(Lifecycle):
    """Keeps this node a member of its cluster, and knows the others.

        async with Agent(service, StaticDiscovery(["10.0.0.1:26502"])) as agent:
            print([str(member) for member in agent.members])

    Args:
        service: the started messaging service of this node; its name is the member's name.
        discovery: tells where others may be found; without it this node waits to be found.
        properties: what others shall know of this node.
        config: all times and sizes.
        datagrams: whether gossip goes by UDP, at the port of the service. By default it does,
            unless the service uses TLS, which datagrams would undo.
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
            raise ConfigError(f"an agent needs a MessagingService, not {service!r}")
        if discovery is not None and not isinstance(discovery, Discovery):
            raise ConfigError(
                f"{discovery!r} is no discovery; StaticDiscovery([...]) takes addresses"
            )
        if datagrams and service.uses_tls:
            raise ConfigError("gossip by datagrams would bypass TLS; leave datagrams off")
        self.service = service
        self.config = _fit_to_frames(config or MembershipConfig(), service)
        self._discovery = StaticDiscovery([]) if discovery is None else discovery
        self._properties = validate_properties(properties or {}, self.config)
        self._uses_datagrams = not service.uses_tls if datagrams is None else datagrams
        self._audience = MembershipListeners()
        self._transmission = PacketTransport(service, self._on_answer, self._on_same_name)
        self._transmission.subscribe(SUBJECT, self._on_datagram)
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        # Why this node is no member any more, if it did not leave by itself.
        self.failure: NameConflictError | None = None
        self._is_stopped = False
        self._is_subscribed = False
        # What others have this agent run until it stops.
        self._tasks: dict[asyncio.Future[object], None] = {}
        # The task that closes everything, once there is a reason to.
        self._closing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        # Probes that only TCP answered, as far as that was told.
        self._told_by_stream = 0
        # Set by start.
        self._loop: asyncio.AbstractEventLoop
        self._machine: Membership | None = None
        self._joined: asyncio.Future[None]
        self._closed: asyncio.Future[None]

    # Life.

    async def start(self) -> None:
        """Join the cluster.

        Returns once a contact has answered, or, if none does, after a while: this node then goes on
        alone and keeps looking for others.

        Raises:
            NameConflictError: another live node of the cluster has this node's name.
        """
        if self._machine is not None:
            raise UsageError(f"agent of {self.service.name!r} was started already; make a new one")
        self._loop = asyncio.get_running_loop()
        self._joined = self._loop.create_future()
        self._closed = self._loop.create_future()
        self._machine = machine = self._make_machine(self.service.address)
        try:
            self._subscribe()
            self.service.set_duplicate_name_callback(self._on_namesake)
            self._is_subscribed = True
            if self._uses_datagrams:
                await self._transmission.open_datagrams()
            if self._is_stopped:
                # Whoever stopped it could not know of the socket.
                await self._transmission.close()
                raise self._stopped_while_starting()
            machine.start(self._loop.time())
            self._process_outputs()
            await self._discovery.start(self.service.name, self.service.address, self._on_contacts)
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

    def _subscribe(self) -> None:
        try:
            self.service.serve(SUBJECT, self._on_request)
        except ConfigError:
            raise UsageError(f"service {self.service.name!r} has an agent already") from None

    def _log_joined(self) -> None:
        names = [member.name for member in self.members]
        if len(names) > 1 or not self._discovery.statistics().contacts:
            more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
            told = ", ".join(names[:_NAMES_TOLD])
            logger.info("%s joined the cluster; members: %s%s", self.service.name, told, more)
            return
        reason = self._transmission.last_failure
        logger.warning(
            "%s goes on alone and keeps looking: no contact has answered%s",
            self.service.name,
            f"; the last one: {reason}" if reason else "",
        )

    async def stop(self) -> None:
        """Say goodbye and leave."""
        if self._machine is not None:
            self._leave()
            await self._start_closing()

    def _leave(self) -> None:
        machine = self._running_machine()
        machine.leave()
        self._process_outputs()

    def _stopped_while_starting(self) -> NotRunningError:
        return NotRunningError(f"the agent of {self.service.name!r} was stopped while it started")

    def _start_closing(self) -> asyncio.Future[None]:
        """Close in a task of its own, which ends even if whoever waits for it is cancelled."""
        if self._closing is None:
            self._is_stopped = True
            self._closing = self._loop.create_task(self._close())
        return asyncio.shield(self._closing)

    async def _close(self) -> None:
        """Let the goodbye be delivered, then close."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_subscribed:
            self.service.unsubscribe(SUBJECT)
            self.service.clear_duplicate_name_callback()
            self.service.set_hello_membership(False)
        await self._transmission.drain()
        self._audience.close(self.failure)
        for task in list(self._tasks):
            task.cancel()
        try:
            await self._discovery.stop()
        except Exception:
            logger.exception("the discovery of %s could not be stopped", self.service.name)
        await self._transmission.close()
        for future in (self._joined, self._closed):
            if not future.done():
                future.set_result(None)

    async def wait_closed(self) -> None:
        """Return once this node has left; raises NameConflictError if it had to."""
        self._running_machine()
        await asyncio.shield(self._closed)
        if self.failure is not None:
            raise self.failure

    def _make_machine(self, address: Address) -> Membership:
        return Membership(
            self.service.name,
            address,
            instance=self.service.incarnation,
            incarnation=time.time_ns() // 1_000_000,
            secret=secrets.token_bytes(16),
            chance=random.SystemRandom(),
            # Whom this node calls shows a certificate with its name, or knows the secret.
            proves_names=self.service.uses_tls or self.service.is_closed,
            properties=self._properties,
            config=self.config,
        )

    # Looking.

    @property
    def local_member(self) -> Member:
        """This node."""
        return self._running_machine().local_member

    @property
    def members(self) -> list[Member]:
        """All members, this node first, those that do not answer at the moment included."""
        return self._running_machine().members()

    def member(self, name: str) -> Member | None:
        """The member of that name."""
        return self._running_machine().member(name)

    def names_at(self, address: Address) -> list[str]:
        """Members that are reached at the address: one or none, unless two claim it."""
        return self._running_machine().names_at(address)

    @property
    def datagram_service(self) -> DatagramService | None:
        """What this node sends and receives datagrams with, if it may."""
        self._running_machine()
        return self._transmission.datagrams

    def subscribe_datagrams(self, subject: str, listener: DatagramListener) -> None:
        """Have `listener(message)` called for datagrams to the subject; also before the start."""
        self._transmission.subscribe(subject, listener)

    def unsubscribe_datagrams(self, subject: str) -> None:
        """Forget the listeners to the subject."""
        self._transmission.unsubscribe(subject)

    def create_task(self, awaitable: Awaitable[object]) -> asyncio.Future[object]:
        """Run something beside this agent; it is cancelled when the agent stops."""
        task = asyncio.ensure_future(awaitable)
        if self._is_stopped:
            task.cancel()
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def statistics(self) -> ClusterStatistics:
        """What is going on."""
        machine = self._running_machine()
        members = machine.members()
        return ClusterStatistics(
            members=len(members),
            suspects=sum(member.state is MemberState.SUSPECT for member in members),
            health=machine.health,
            counters=msgspec.structs.replace(
                machine.counters, refused=dict(machine.counters.refused)
            ),
            streams_failed=self._transmission.failed,
            streams_dropped=self._transmission.dropped,
            round_trips_s=machine.round_trips_s(),
            discovery=self._discovery.statistics(),
        )

    def events(self) -> MembershipEventStream:
        """Every change from now on, to be read with `async for`."""
        return self._audience.open_stream()

    def add_listener(self, listener: MembershipListener) -> None:
        """Have `listener(change)` called with every change."""
        self._audience.add(listener)

    def remove_listener(self, listener: MembershipListener) -> None:
        """Do not call it any more."""
        self._audience.remove(listener)

    # Doing.

    def set_properties(self, changes: Mapping[str, str | None]) -> None:
        """Change what others know of this node; None removes a property."""
        if self._is_stopped:
            raise UsageError(f"the agent of {self.service.name!r} was stopped")
        if self._machine is None:
            merged = {**self._properties, **changes}
            kept = {key: value for key, value in merged.items() if value is not None}
            self._properties = validate_properties(kept, self.config)
        else:
            self._machine.set_properties(changes, self._loop.time())
            self._process_outputs()

    def contact(self, address: Address) -> None:
        """Somebody unknown speaks from there: find out whether it is a member nobody told of."""
        self._running_machine().contact(address, self._loop.time())
        self._process_outputs()

    def _running_machine(self) -> Membership:
        if self._machine is None:
            raise UsageError(f"start() the agent of {self.service.name!r} first")
        return self._machine

    # What comes in.

    def _on_contacts(self, contacts: frozenset[Address]) -> None:
        self._running_machine().set_contacts(contacts, self._loop.time())
        self._process_outputs()

    def _on_request(self, message: RawMessage) -> bytes:
        if message.peer is None and self.service.uses_tls:
            raise MemberNotFoundError(
                "over TLS, news of members is taken from nodes with a certificate"
            )
        answer = self._receive(message.payload, message.sender, in_stream=True)
        self._process_outputs()
        return answer or b""

    def _on_datagram(self, message: RawMessage) -> None:
        origin = message.source or message.sender
        answer = self._receive(message.payload, message.sender, origin=origin)
        if answer is not None:
            # Where it came from and nowhere else: its sender can say what it likes.
            self._transmission.send_datagram(origin, SUBJECT, answer)
        self._process_outputs()

    def _on_answer(self, address: Address, payload: bytes) -> None:
        self._receive(payload, address, in_stream=True, is_answer=True)
        self._process_outputs()

    def _receive(
        self,
        payload: bytes,
        source: Address,
        *,
        in_stream: bool = False,
        is_answer: bool = False,
        origin: Address | None = None,
    ) -> bytes | None:
        machine = self._running_machine()
        answer = machine.receive(
            payload,
            source,
            self._loop.time(),
            in_stream=in_stream,
            is_answer=is_answer,
            origin=origin,
        )
        for reason in machine.drain_rejections():
            self._warn(reason, "%s: refused news from %s: %s", self.service.name, source, reason)
        return answer

    def _on_same_name(self, address: Address, rival: DuplicateNamePeerError) -> None:
        self._running_machine().on_duplicate_name_peer(
            address, rival.incarnation, self._loop.time(), is_member=rival.is_member
        )
        self._process_outputs()

    def _on_namesake(self, address: Address, instance: int) -> None:
        self._running_machine().on_duplicate_name_caller(address, instance, self._loop.time())
        self._process_outputs()

    def _tick(self) -> None:
        self._timer = None
        try:
            self._running_machine().tick(self._loop.time())
        finally:
            self._process_outputs()

    # What goes out.

    def _process_outputs(self) -> None:
        """Send, tell, set the timer."""
        machine = self._running_machine()
        try:
            for send in machine.drain_outgoing():
                self._transmission.send(send, SUBJECT, timeout_s=self.config.probe_timeout_s)
            for change in machine.drain_events():
                self._publish(change)
        finally:
            # Whatever else happens, time goes on.
            self._set_timer(machine.deadline())
        if machine.phase is MembershipPhase.MEMBER and not self._joined.done():
            self.service.set_hello_membership(True)
            self._joined.set_result(None)
        self._warn_of_blocked_datagrams(machine.counters.probes_by_stream)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            if self._timer_at == when:
                return
            self._timer.cancel()
            self._timer = None
        if when < NEVER and not self._is_stopped:
            self._timer_at = when
            self._timer = self._loop.call_at(when, self._tick)

    def _publish(self, change: MembershipUpdate) -> None:
        if isinstance(change, MembershipEvent):
            # What members say of themselves changes often, and is nobody's trouble.
            suppress_errors = change.kind is MembershipEventType.METADATA
            level = logging.DEBUG if suppress_errors else logging.INFO
            logger.log(level, "%s: %s", self.service.name, change)
            self._audience.publish(change)
        elif isinstance(change, NameConflictDetected):
            self._warn(
                "contested",
                "a second node named %r at %s was refused",
                self.service.name,
                change.rival,
            )
        else:
            self._on_name_conflict_lost(change)

    def _on_name_conflict_lost(self, lost: NameConflictLost) -> None:
        """Another live node keeps the name: this one is no member any more."""
        self.failure = NameConflictError(self.service.name, str(lost.holder))
        if not self._joined.done():
            # Whoever starts this node is told.
            self._joined.set_result(None)
            return
        logger.error("%s", self.failure)
        self._start_closing()

    def _warn_of_blocked_datagrams(self, by_stream: int) -> None:
        if by_stream > self._told_by_stream and self._uses_datagrams:
            self._told_by_stream = by_stream
            self._warn(
                "datagrams",
                "%s: a member answers over TCP but not over UDP; are datagrams blocked?",
                self.service.name,
            )

    def _warn(self, key: str, text: str, *args: object) -> None:
        self._log.log(key, self._loop.time(), text, *args)

    def __repr__(self) -> str:
        if self._machine is None:
            return f"<Agent {self.service.name} not started>"
        members = len(self._machine.members())
        return f"<Agent {self.service.name} {self._machine.phase.value}, {members} members>"


def _fit_to_frames(config: MembershipConfig, service: MessagingService) -> MembershipConfig:
    """A view that is sent must not be larger than what a connection carries."""
    stream_bytes_max = min(config.stream_bytes_max, service.limits.frame_bytes_max // 2)
    return msgspec.structs.replace(config, stream_bytes_max=stream_bytes_max)
