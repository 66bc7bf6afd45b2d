"""How nodes with a server between them know each other: they say who they are, and that they live.

A node asks who is there when it connects, tells what it offers whenever that changes, sends a
heartbeat now and then, and says goodbye. Heartbeats tell the number of the last change, so that
whoever missed one asks for it.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import Callable
from typing import Protocol

from msgspec import UNSET

from postroad.core import ThrottledLogger
from postroad.core.errors import MalformedPayloadError, PostroadError

from .config import BrokerConfig
from .info_form import read_info, write_info
from .kinds import VERSION
from .nodes import Change
from .pacing import Answers, Pacing
from .packet_form import from_wire, to_wire
from .packets import Disconnect, Discover, Heartbeat, Info, Packet
from .registry import Registry
from .transit import logger

# A fixed part of the interval, so that nodes that started together do not beat together.
_JITTER = 0.05
_LOG_INTERVAL_S = 10.0

Send = Callable[[Packet, str | None], None]
Apply = Callable[[list[Change]], None]


class Presence(Protocol):
    """Makes this node known to others, and others to this node."""

    async def start(self) -> None:
        """The transporter is connected for the first time: find the others."""
        ...

    def reconnected(self) -> None:
        """The transporter is connected again."""
        ...

    def services_changed(self) -> None:
        """This node offers something else than before."""
        ...

    def settle(self) -> None:
        """This node has started: what it offers is told now, and not in a moment."""
        ...

    def received(self, packet: Packet) -> None:
        """A packet about nodes came."""
        ...

    def ask(self, node_id: str) -> None:
        """Have a node tell what it offers."""
        ...

    async def withdraw(self) -> None:
        """Say that this node offers nothing any more."""
        ...

    async def leave(self, *, says_goodbye: bool = True) -> None:
        """Do nothing any more, and say goodbye, unless another node has the same name."""
        ...


class AnnouncedPresence:
    """The presence of nodes that reach all others at once."""

    def __init__(
        self,
        registry: Registry,
        send: Send,
        apply: Apply,
        config: BrokerConfig,
        chance: random.Random,
    ) -> None:
        self._registry = registry
        self._send = send
        self._apply = apply
        self._config = config
        self._node_id = registry.local.id
        self._interval_s = config.heartbeat_interval_s * (1 + _JITTER * (2 * chance.random() - 1))
        self._loop = asyncio.get_running_loop()
        self._announcement: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._check: asyncio.TimerHandle | None = None
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        self._asking = Pacing(self._discover)
        self._answers = Answers(self._answer)
        # Nothing is told before it is sure that no other node has this name.
        self._is_sure = False
        self._is_withdrawn = False
        self._has_left = False

    async def start(self) -> None:
        self._tell(Discover(ver=VERSION, sender=self._node_id))
        self._schedule_check()
        await asyncio.sleep(self._config.start_wait_s)
        self._is_sure = True
        self._schedule_beat()

    def reconnected(self) -> None:
        # Whoever came or went meanwhile did so unheard.
        self._tell(Discover(ver=VERSION, sender=self._node_id))
        if self._is_sure:
            self._announce()

    def services_changed(self) -> None:
        if self._announcement is None and not self._is_withdrawn:
            self._announcement = self._loop.call_later(
                self._config.announce_delay_s, self._announce
            )

    def settle(self) -> None:
        if self._announcement is not None:
            self._announce()

    async def withdraw(self) -> None:
        self._cancel_announcement()
        self._is_withdrawn = True
        if self._is_sure:
            self._tell(self._info())
            await asyncio.sleep(self._config.stop_delay_s)

    async def leave(self, *, says_goodbye: bool = True) -> None:
        self._cancel_announcement()
        self._has_left = True
        self._asking.close()
        self._answers.close()
        for timer in (self._beat, self._check):
            if timer is not None:
                timer.cancel()
        if says_goodbye and self._is_sure:
            instance_id = self._registry.local.instance_id
            self._tell(Disconnect(instance_id=instance_id, ver=VERSION, sender=self._node_id))

    def received(self, packet: Packet) -> None:
        if isinstance(packet, Heartbeat):
            self._receive_heartbeat(packet)
        elif isinstance(packet, Info):
            self._receive_info(packet)
        elif isinstance(packet, Discover):
            self._registry.receive_discover(packet.sender, self._loop.time())
            # Also if it seems to be from this node: it may be another with the same name.
            if self._is_sure and not self._has_left:
                self._answers.asked(packet.sender)
        elif isinstance(packet, Disconnect) and packet.sender != self._node_id:
            instance_id = None if packet.instance_id is UNSET else packet.instance_id
            now = self._loop.time()
            self._apply(
                self._registry.receive_disconnect(packet.sender, now, instance_id=instance_id)
            )

    def ask(self, node_id: str) -> None:
        if not self._has_left:
            self._asking.want(node_id)

    # What is heard.

    def _receive_heartbeat(self, packet: Heartbeat) -> None:
        changes = self._registry.receive_heartbeat(
            packet.sender,
            self._loop.time(),
            cpu=packet.cpu,
            seq=None if packet.seq is UNSET else packet.seq,
            instance_id=None if packet.instance_id is UNSET else packet.instance_id,
        )
        if changes:
            self._apply(changes)

    def _receive_info(self, packet: Info) -> None:
        now = self._loop.time()
        try:
            read = read_info(to_wire(packet))
        except MalformedPayloadError as error:
            self._log.log(packet.sender, now, "INFO of %s makes no sense: %s", packet.sender, error)
            return
        self._apply(self._registry.receive_info(packet.sender, read, now))
        self._schedule_check()

    # What is told.

    def _announce(self) -> None:
        self._cancel_announcement()
        self._tell(self._info())

    def _discover(self, node_id: str) -> None:
        self._tell(Discover(ver=VERSION, sender=self._node_id), node_id)

    def _answer(self, node_id: str | None) -> None:
        if self._announcement is not None:
            self._announce()
        else:
            self._tell(self._info(), node_id)

    def _info(self) -> Packet:
        body = write_info(self._registry.local_info(is_stopping=self._is_withdrawn))
        return from_wire(Info.KIND, {**body, "ver": VERSION, "sender": self._node_id})

    def _tell(self, packet: Packet, node_id: str | None = None) -> None:
        """Send what others will hear of sooner or later anyway, if it cannot be sent now."""
        try:
            self._send(packet, node_id)
        except PostroadError as error:
            self._log.log(packet.KIND, self._loop.time(), "%s was not sent: %s", packet.KIND, error)

    def _cancel_announcement(self) -> None:
        if self._announcement is not None:
            self._announcement.cancel()
            self._announcement = None

    # What is done now and then.

    def _schedule_beat(self) -> None:
        self._beat = self._loop.call_later(self._interval_s, self._send_beat)

    def _send_beat(self) -> None:
        self._schedule_beat()
        local = self._registry.local
        local.cpu = cpu_percent()
        self._tell(
            Heartbeat(
                cpu=local.cpu,
                seq=local.seq,
                instance_id=local.instance_id,
                ver=VERSION,
                sender=self._node_id,
            )
        )

    def _schedule_check(self) -> None:
        due = math.inf if self._has_left else self._registry.deadline()
        if self._check is not None and self._check.when() <= due and not self._check.cancelled():
            return
        if self._check is not None:
            self._check.cancel()
        self._check = None if due == math.inf else self._loop.call_at(due, self._run_check)

    def _run_check(self) -> None:
        self._check = None
        self._apply(self._registry.tick(self._loop.time()))
        self._schedule_check()


def cpu_percent() -> int:
    """How busy this machine was in the last minute, in per cent of all its processors."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return 0
    return min(100, round(100 * load / (os.cpu_count() or 1)))
