"""Events whose sender waits until they were handled. Only nodes of this package can.

The sender knows which groups of which nodes it gave an event to, and waits for one EventAck of
each. A node that gets such an event tells for each group when its handlers are through, and how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from postroad.core.errors import MessagingError, Outcome

from .context import Context
from .error_form import error_from_wire, error_to_wire
from .errors import (
    BrokerDisconnectedError,
    EventNotHandledError,
    MoleculerClientError,
    QueueIsFullError,
    RequestRejectedError,
    RequestTimeoutError,
    ServiceNotAvailableError,
)
from .events import EventCatalog
from .kinds import VERSION
from .packets import Event, EventAck
from .transit import Transit

Handled = asyncio.Future[BaseException | None]
"""Done when the handlers of a group are; with the error of one that failed."""

Write = Callable[[Context, Collection[str]], Event]
RunGroup = Callable[[Context, str], Handled]


class _Expected(NamedTuple):
    node_id: str | None
    """The node that was chosen; None where the transporter chooses."""
    event: str
    handled: Handled


class EventAcks:
    """Sends events that are acknowledged, and acknowledges those of others.

    Args:
        node_id: of this node.
        transit: the way to others; None if there are none.
        events: who listens to what.
        write: makes the packet of an event for some groups.
        run_group: runs the handlers of a group at this node.
        can_ack: whether a node knows of EventAcks.
        is_balanced: whether the transporter chooses who gets an event.
        pending_max: EventAcks that are waited for at once.
    """

    def __init__(
        self,
        node_id: str,
        transit: Transit | None,
        events: EventCatalog,
        write: Write,
        run_group: RunGroup,
        can_ack: Callable[[str], bool],
        *,
        is_balanced: bool,
        pending_max: int,
    ) -> None:
        self._node_id = node_id
        self._transit = transit
        self._events = events
        self._write = write
        self._run_group = run_group
        self._can_ack = can_ack
        self._is_balanced = is_balanced
        self._pending_max = pending_max
        self._loop = asyncio.get_running_loop()
        self._expected: dict[tuple[str, str], _Expected] = {}
        self.orphans = 0
        """EventAcks that nobody waited for: late ones, or doubled."""

    def __len__(self) -> int:
        return len(self._expected)

    # Whose events are acknowledged.

    async def emit(self, ctx: Context, groups: Collection[str]) -> None:
        """Give an event to one handler of each group, and wait until all are through."""
        plan = self._plan(ctx, groups)
        self._check(ctx, plan)
        waits: dict[Handled, str] = {}
        failures: dict[str, BaseException] = {
            group: _nobody(ctx.event, group) for group in groups if not plan.get(group)
        }
        keys: list[tuple[str, str]] = []
        try:
            if self._is_balanced:
                self._send_balanced(ctx, plan, waits, keys, failures)
            else:
                self._send_chosen(ctx, plan, waits, keys, failures)
            if waits:
                await asyncio.wait(waits, timeout=ctx.timeout_s or None)
            failures |= self._failures(ctx, waits)
        finally:
            for key in keys:
                self._expected.pop(key, None)
        if failures:
            raise EventNotHandledError.of(ctx.event, failures)

    def _plan(self, ctx: Context, groups: Collection[str]) -> Mapping[str, Collection[str]]:
        """The nodes of each group that get the event, or where the transporter chooses, may."""
        if self._is_balanced:
            return self._events.nodes_of(ctx.event, groups)
        return self._events.plan_acked(ctx.event, groups, ctx.params, ctx.meta, self._can_ack)

    def _check(self, ctx: Context, plan: Mapping[str, Collection[str]]) -> None:
        """Refuse what cannot succeed, before anything is sent."""
        for group, nodes in plan.items():
            for node_id in nodes:
                if node_id != self._node_id and not self._can_ack(node_id):
                    raise _refusal(ctx.event, group, node_id)
        count = sum(map(len, plan.values()))
        if len(self._expected) + count > self._pending_max:
            raise QueueIsFullError(data={"action": ctx.event, "nodeID": self._node_id})

    def _send_chosen(
        self,
        ctx: Context,
        plan: Mapping[str, Collection[str]],
        waits: dict[Handled, str],
        keys: list[tuple[str, str]],
        failures: dict[str, BaseException],
    ) -> None:
        for node_id, groups in _by_node(plan).items():
            if node_id == self._node_id:
                continue
            transit = self._connected()
            packet = self._packet(ctx, groups)
            try:
                transit.send(packet, node_id)
            except MessagingError as error:
                failures.update(dict.fromkeys(groups, error))
                continue
            for group in groups:
                waits[self._expect(packet, group, node_id, keys)] = group
        # What runs here begins when all else is on its way.
        for group, nodes in plan.items():
            if self._node_id in nodes:
                waits[self._run_group(ctx, group)] = group

    def _send_balanced(
        self,
        ctx: Context,
        plan: Mapping[str, Collection[str]],
        waits: dict[Handled, str],
        keys: list[tuple[str, str]],
        failures: dict[str, BaseException],
    ) -> None:
        for group in plan:
            transit = self._connected()
            packet = self._packet(ctx, (group,))
            try:
                transit.send_balanced(packet, transit.topics.for_event(group, ctx.event))
            except MessagingError as error:
                failures[group] = error
                continue
            waits[self._expect(packet, group, None, keys)] = group

    def _connected(self) -> Transit:
        if self._transit is None:
            raise BrokerDisconnectedError
        return self._transit

    def _packet(self, ctx: Context, groups: Collection[str]) -> Event:
        return msgspec.structs.replace(self._write(ctx, groups), need_ack=True)

    def _expect(
        self, packet: Event, group: str, node_id: str | None, keys: list[tuple[str, str]]
    ) -> Handled:
        handled: Handled = self._loop.create_future()
        key = packet.id or "", group
        self._expected[key] = _Expected(node_id, packet.event, handled)
        keys.append(key)
        return handled

    def _failures(self, ctx: Context, waits: Mapping[Handled, str]) -> dict[str, BaseException]:
        failures: dict[str, BaseException] = {}
        for handled, group in waits.items():
            if not handled.done():
                told = {"action": ctx.event, "group": group, "nodeID": self._node_id}
                text = f"group {group!r} has not handled event {ctx.event!r} in time"
                failures.setdefault(group, RequestTimeoutError(text, data=told))
            elif handled.cancelled():
                failures.setdefault(group, _nobody(ctx.event, group))
            elif (error := handled.result()) is not None:
                failures.setdefault(group, error)
        return failures

    def receive(self, ack: EventAck) -> None:
        """A node tells that a group is through with an event."""
        expected = self._expected.get((ack.id, ack.group or ""))
        if expected is None or expected.node_id not in (None, ack.sender):
            self.orphans += 1
            return
        if not expected.handled.done():
            error = None if ack.success else error_from_wire(ack.error, sender=ack.sender)
            expected.handled.set_result(error)

    def lose_node(self, node_id: str) -> None:
        """A node is gone, or begins a new life: it will not tell."""
        self._fail(RequestRejectedError, lambda it: it.node_id == node_id)

    def close(self) -> None:
        """Nobody will tell any more."""
        self._fail(BrokerDisconnectedError, lambda it: True)

    def _fail(
        self,
        kind: type[RequestRejectedError | BrokerDisconnectedError],
        is_meant: Callable[[_Expected], bool],
    ) -> None:
        for expected in self._expected.values():
            if is_meant(expected) and not expected.handled.done():
                error = kind(data={"action": expected.event, "nodeID": expected.node_id})
                # It was sent, whatever else this kind of error means.
                error.outcome = Outcome.UNKNOWN
                expected.handled.set_result(error)

    # What is acknowledged for others.

    def groups_of(self, packet: Event) -> list[str]:
        """The groups at this node that an event is for."""
        if packet.groups is UNSET or not packet.groups:
            known = self._events.groups_of(packet.event)
            return [it for it in known if self._events.local_broadcast(packet.event, (it,))]
        return [*dict.fromkeys(packet.groups)]

    def answer(self, packet: Event, ctx: Context) -> list[Handled]:
        """Run the handlers that an event is for, and tell its sender of each group."""
        return [self._answer_for(packet, ctx, group) for group in self.groups_of(packet)]

    def refuse(self, packet: Event, error: BaseException) -> None:
        """Tell the sender that an event is not handled here."""
        for group in self.groups_of(packet):
            self._tell(packet, group, error)

    def _answer_for(self, packet: Event, ctx: Context, group: str) -> Handled:
        handled = self._run_group(ctx, group)

        def tell(ended: Handled) -> None:
            error = _nobody(packet.event, group) if ended.cancelled() else ended.result()
            self._tell(packet, group, error)

        handled.add_done_callback(tell)
        return handled

    def _tell(self, packet: Event, group: str, error: BaseException | None) -> None:
        for has_data in (True, False):
            try:
                self._connected().send(
                    self._ack(packet, group, error, has_data=has_data), packet.sender
                )
                return
            except TypeError:
                # Something in the data of the error cannot be sent; somebody waits for this.
                continue
            except MessagingError:
                # Its sender will know that this node was lost, or wait long enough.
                return

    def _ack(
        self, packet: Event, group: str, error: BaseException | None, *, has_data: bool
    ) -> EventAck:
        node_id = self._node_id
        told = error and error_to_wire(
            error, node_id=node_id, action=packet.event, has_data=has_data
        )
        return EventAck(
            id=packet.id or "",
            success=error is None,
            group=group,
            error=told or UNSET,
            ver=VERSION,
            sender=node_id,
        )


def _by_node(plan: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    groups_of: dict[str, list[str]] = {}
    for group, nodes in plan.items():
        for node_id in nodes:
            groups_of.setdefault(node_id, []).append(group)
    return groups_of


def _nobody(event: str, group: str) -> ServiceNotAvailableError:
    told = {"action": event, "group": group}
    return ServiceNotAvailableError(f"nobody in group {group!r} handles {event!r} now", data=told)


def _refusal(event: str, group: str, node_id: str) -> MoleculerClientError:
    text = (
        f"event {event!r} was not sent: node {node_id!r} in group {group!r} does not acknowledge "
        "events; only nodes of Postroad do"
    )
    told = {"event": event, "group": group, "nodeID": node_id}
    error = MoleculerClientError(text, type="ACK_NOT_SUPPORTED", data=told)
    error.outcome = Outcome.NOT_SENT
    return error
