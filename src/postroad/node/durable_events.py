"""Durable events: every group handles each of them once, whatever dies on the way.

An event is a letter for each group. They are posted together, to the node that emits it itself. A
node that has such a letter hands it to its own handlers of the group; or posts it to a node that
has some, in one transaction with its acknowledgement; or keeps it until there is one. So at any
time one node has it, and the choice of the next one is part of the commit that gives it away.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Any

import msgspec

from postroad.cells.routing.rendezvous import rendezvous_rank
from postroad.core import Lifecycle
from postroad.core import fault_points as faults
from postroad.core.errors import ConfigError, Outcome, Reject, UsageError
from postroad.durable import DurableQueues, Message, OutgoingMessage, RetryPolicy, Transaction
from postroad.durable.names import validate_key
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.durability import IDEMPOTENCY_KEY, METADATA, TRANSACTION
from postroad.services.errors import MoleculerClientError, UnsendablePacket, ValidationError

TAKEN = faults.declare_fault_point("node.events.taken")
PASSED = faults.declare_fault_point("node.events.passed")
HANDLED = faults.declare_fault_point("node.events.handled")

QUEUE = "services.events"
"""The queue of every node that takes durable events."""

_STOP_GRACE_S = 5.0
_ID_BYTES = 16
# How long an event for which there is nobody waits before the next look; it doubles.
_LOOK_FIRST_S = 0.1
_LOOK_MAX_S = 5.0
_DOUBLINGS_MAX = 10


class _Letter(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An event for one group, as it is sent."""

    id: str
    """Of the event; the same for all groups."""
    event: str
    group: str
    data: Any
    meta: dict[str, Any]
    headers: dict[str, Any]
    level: int
    tracing: bool | None
    parent_id: str | None
    request_id: str
    caller: str | None
    origin: str
    """The node that emitted it."""
    hops: int = 0
    """How many nodes it was passed on by."""
    looks: int = 0
    """How often there was nobody to pass it on to."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Letter)


class DurableEvents(Lifecycle):
    """Lets a broker emit durable events, and handle those of others.

        queues = DurableQueues(agent, SqliteStore("alpha.db"))
        broker = Broker("alpha", transporter="nats://")
        events = DurableEvents(broker, queues)
        async with queues, broker, events:
            await broker.emit("order.created", {"id": 1}, durable=True)

    Make one on every node that emits or handles durable events, before its broker starts, and
    start it after. The names of brokers and of the nodes of their queues are the same.

    Handlers are those of any event. One that raises has the event come again, and after
    `retry.attempts` failures it is a dead letter of its node; one that raises
    `ValidationError` or `Reject` makes it one at once. What a handler writes through
    `ctx.transaction`, and the durable events it emits, is committed together with the fact that
    the event was handled: once. What it does elsewhere is done again if the process dies before.
    All handlers of a group at the node share the transaction. An event that was given to a node
    that died waits until that node is back.

    Args:
        broker: of this node, not started yet.
        queues: the durable queues of the same node.
        retry: how often and when an event is handled again whose handler failed.
        concurrency: events that are handled here at the same time.
    """

    def __init__(
        self,
        broker: Broker,
        queues: DurableQueues,
        *,
        retry: RetryPolicy | None = None,
        concurrency: int = 1,
    ) -> None:
        if broker.node_id != queues.service.name:
            raise ConfigError(
                f"broker {broker.node_id!r} and the queues of {queues.service.name!r} "
                "must be of the same node"
            )
        self._broker = broker
        self._queues = queues
        self._retry = retry
        self._concurrency = concurrency
        self._is_running = False
        broker.use_durable_events(self)

    async def start(self) -> None:
        """Begin to handle what came, now that the services are there."""
        if not self._broker.is_running:
            raise UsageError("start the broker before its durable events")
        await self._queues.consume(
            QUEUE, self._receive, concurrency=self._concurrency, retry=self._retry
        )
        self._is_running = True

    async def stop(self, grace: float = _STOP_GRACE_S) -> None:
        """Let handlers end; events stay where they are, and no more are taken."""
        if self._is_running:
            self._is_running = False
            await self._queues.stop_consuming(QUEUE, grace)

    # Out.

    async def emit(self, ctx: Context, groups: Collection[str]) -> None:
        """Post an event for each group that listens to it, or that is named.

        Raises:
            MoleculerClientError: no node of a group takes durable events. Nothing was posted.
            UnsendablePacket: something in it cannot be written down.
        """
        wanted = self._groups(ctx.event, groups)
        key: str | None = ctx.locals.get(IDEMPOTENCY_KEY)
        transaction: Transaction | None = ctx.locals.get(TRANSACTION)
        id = ctx.id if key is None else self._repeatable_id(validate_key(key))
        drafts = [self._draft(ctx, id, group, key) for group in wanted]
        if transaction is not None:
            for draft in drafts:
                transaction.send_message(draft)
        elif drafts:
            await self._queues.send_many(drafts)

    def _groups(self, event: str, groups: Collection[str]) -> list[str]:
        listening = self._broker.registry.events.nodes_of(event, groups)
        for group, nodes in listening.items():
            if not self._able(nodes):
                raise _refusal(event, group, nodes)
        return [*dict.fromkeys([*groups, *listening])]

    def _draft(self, ctx: Context, id: str, group: str, key: str | None) -> OutgoingMessage:
        letter = _Letter(
            id=id,
            event=ctx.event,
            group=group,
            data=ctx.params,
            meta=ctx.meta,
            headers=ctx.headers,
            level=ctx.level,
            tracing=ctx.tracing,
            # What differs between two attempts must not be in there.
            parent_id=ctx.parent_id if key is None else None,
            request_id=ctx.request_id if key is None else id,
            caller=ctx.caller,
            origin=self._broker.node_id,
        )
        try:
            body = _encoder.encode(letter)
        except Exception as error:
            raise UnsendablePacket(f"event {ctx.event!r} cannot be kept: {error}") from None
        own = None if key is None else f"{QUEUE}:{group}:{key}"
        return OutgoingMessage(to=self._broker.node_id, queue=QUEUE, body=body, idempotency_key=own)

    def _repeatable_id(self, key: str) -> str:
        text = "\0".join((self._broker.node_id, key))
        return blake2b(text.encode(), digest_size=_ID_BYTES).hexdigest()

    # In.

    async def _receive(self, message: Message, tx: Transaction) -> None:
        letter = _read(message.body)
        TAKEN.hit(group=letter.group)
        chosen = self._choose(letter)
        if chosen == self._broker.node_id:
            await self._handle(letter, tx)
        elif chosen is None:
            kept = msgspec.structs.replace(letter, looks=letter.looks + 1)
            tx.send(
                QUEUE, _encoder.encode(kept), to=self._broker.node_id, delay=_pause_s(letter.looks)
            )
        else:
            onward = msgspec.structs.replace(letter, hops=letter.hops + 1, looks=0)
            # It may go back and forth while nodes do not agree on who listens; not in a hurry.
            delay = _pause_s(letter.hops - 1) if letter.hops else None
            tx.send(QUEUE, _encoder.encode(onward), to=chosen, delay=delay)
            PASSED.hit(node=chosen)

    def _choose(self, letter: _Letter) -> str | None:
        """The node that handles an event for a group; None if nobody can now."""
        broker = self._broker
        if not broker.is_running:
            return None
        nodes = self._able(
            broker.registry.events.nodes_of(letter.event, (letter.group,)).get(letter.group, ())
        )
        is_here = broker.can_handle(letter.event, letter.group)
        if is_here and (letter.hops or broker.config.prefers_local):
            return broker.node_id
        others = [it for it in nodes if it != broker.node_id or is_here]
        return (
            rendezvous_rank(f"{letter.id}.{letter.group}".encode(), others)[0] if others else None
        )

    async def _handle(self, letter: _Letter, tx: Transaction) -> None:
        ctx = Context(
            self._broker,
            params=letter.data,
            meta=letter.meta,
            headers=letter.headers,
            event=letter.event,
            request_id=letter.request_id,
            parent_id=letter.parent_id,
            level=letter.level,
            caller=letter.caller,
            node_id=letter.origin,
            tracing=letter.tracing,
        )
        ctx.groups = (letter.group,)
        ctx.locals[TRANSACTION] = tx
        try:
            await self._broker.handle_in_turn(ctx, letter.group)
        except ValidationError as error:
            raise Reject(f"{error}: {error.data!r:.500}") from error
        HANDLED.hit(group=letter.group)

    def _able(self, nodes: Collection[str]) -> list[str]:
        """Those that take durable events."""
        known = ((it, self._broker.registry.node(it)) for it in nodes)
        return [
            node_id
            for node_id, node in known
            if node is not None and node.info.metadata.get(METADATA) is True
        ]

    def __repr__(self) -> str:
        state = "running" if self._is_running else "not running"
        return f"<DurableEvents of {self._broker.node_id} {state}>"


def _read(body: bytes) -> _Letter:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Reject(f"no event: {error}") from None


def _pause_s(count: int) -> float:
    return min(_LOOK_FIRST_S * 2.0 ** min(count, _DOUBLINGS_MAX), _LOOK_MAX_S)


def _refusal(event: str, group: str, nodes: Collection[str]) -> MoleculerClientError:
    text = (
        f"event {event!r} was not taken: no node of group {group!r} ({', '.join(nodes)}) takes "
        "durable events; only nodes of Postroad with DurableEvents do"
    )
    told = {"event": event, "group": group, "nodes": [*nodes]}
    error = MoleculerClientError(text, type="DURABLE_NOT_SUPPORTED", data=told)
    error.outcome = Outcome.NOT_SENT
    return error
