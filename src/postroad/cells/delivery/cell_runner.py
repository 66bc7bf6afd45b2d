"""Runner of one cell: its mailbox, its running handlers, their results.

An idle cell handles a message at once, in the same iteration of the event loop. Otherwise the
message waits in the mailbox; a full mailbox rejects it. A message whose TTL is over when its turn
comes gets an error reply and is not handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple

from postroad.cells.addresses import LOCAL
from postroad.cells.cell import Cell
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.fair_queue import FairQueue
from postroad.cells.errors import (
    CommandRejectedError,
    HopLimitExceededError,
    MessageExpiredError,
    NoRouteError,
)
from postroad.cells.messages import COMMAND, EMPTY_REPLY, PING, CellMessage, build_pong
from postroad.cells.routing.decision import LocalDelivery
from postroad.cells.routing.router import SOURCE_HOPS_MAX
from postroad.cells.tracing import start_handle_span
from postroad.core import tracing
from postroad.core.tracing import NOOP_SPAN, SpanLike

if TYPE_CHECKING:
    from postroad.cells.delivery.dispatcher import MessageDispatcher

# How long cancelled handlers may take to finish.
_CANCEL_TIMEOUT_S = 1.0
# Messages handled in one iteration of the event loop.
_MESSAGES_PER_TURN = 64


class _MailboxItem(NamedTuple):
    """A message in the mailbox."""

    delivery: LocalDelivery
    arrived: float
    transaction: Any = None


class CellRunner:
    """Mailbox and handler tasks of one cell."""

    def __init__(self, cell: Cell, dispatcher: MessageDispatcher) -> None:
        self.cell = cell
        self.name = cell.name
        self._dispatcher = dispatcher
        self._handler = cell.handle
        config = dispatcher.config
        self.mailbox: FairQueue[_MailboxItem] = FairQueue(
            config.mailbox_messages_max, config.mailbox_bytes_max
        )
        self._waiting = self.mailbox.items
        # Running coroutines of the handler, oldest first.
        self._tasks: dict[asyncio.Future[Any], None] = {}
        # Ids of messages with a transaction, and the tasks that handle them.
        self._transactional: dict[bytes, asyncio.Future[Any] | None] = {}
        self._is_invoking = False
        self._is_scheduled = False
        self._idle: asyncio.Future[None] | None = None
        # Messages whose handling started, for statistics.
        self.handled = 0

    # Receiving.

    @property
    def is_free(self) -> bool:
        """Whether a message would be handled at once."""
        return not (self._is_invoking or self._waiting or len(self._tasks) >= self.cell.concurrency)

    @property
    def is_idle(self) -> bool:
        """Whether the mailbox is empty and no handler runs."""
        return not (self._is_invoking or self.mailbox or self._tasks)

    @property
    def running(self) -> int:
        """Number of messages that are being handled."""
        return len(self._tasks) + self._is_invoking

    def deliver(
        self,
        delivery: LocalDelivery,
        arrived: float,
        source: str,
        transaction: Any = None,
        *,
        via: str | None = None,
    ) -> bool:
        """Handle or queue a message; return False if the mailbox is full."""
        if self.is_free and not self._dispatcher.depth:
            self._handle(delivery, arrived, transaction)
            return True
        memory_bytes = delivery.envelope.memory_bytes
        item = _MailboxItem(delivery, arrived, transaction)
        if not self.mailbox.try_put(item, memory_bytes, source, via=via):
            return False
        if transaction is not None:
            self._transactional[delivery.envelope.id] = None
        self._schedule()
        return True

    def cancel(self, id: bytes) -> None:
        """Cancel the handling of a message whose transaction was abandoned."""
        task = self._transactional.pop(id, None)
        if task is not None:
            task.cancel()

    def invoke(self, message: CellMessage) -> Any:
        """Call the handler now; the caller has checked `is_free`."""
        dispatcher = self._dispatcher
        self._is_invoking = True
        dispatcher.depth += 1
        try:
            return self._handler(message)
        finally:
            self._is_invoking = False
            dispatcher.depth -= 1
            if self._waiting:
                self._schedule()

    def track(self, result: Awaitable[Any]) -> asyncio.Future[Any]:
        """Run a coroutine of the handler as a task; it counts as running until it ends."""
        task = asyncio.ensure_future(result)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    # Handling.

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._dispatcher.loop.call_soon(self._process_mailbox)

    def _process_mailbox(self) -> None:
        """Handle queued messages, up to the limit per iteration of the event loop."""
        self._is_scheduled = False
        remaining = _MESSAGES_PER_TURN
        while self.mailbox and not self._is_invoking and len(self._tasks) < self.cell.concurrency:
            if not remaining:
                self._schedule()
                return
            remaining -= 1
            item = self.mailbox.pop()
            envelope = item.delivery.envelope
            if item.transaction is not None and envelope.id not in self._transactional:
                continue  # Its transaction was abandoned.
            if self._is_expired(item):
                self._dispatcher.statistics.expired += 1
                text = f"the message expired in the mailbox of cell {self.name}"
                self._dispatcher.reject(envelope, MessageExpiredError, text)
            else:
                self._handle(*item)
        self._notify_idle()

    def _handle(self, delivery: LocalDelivery, arrived: float, transaction: Any = None) -> None:
        envelope = delivery.envelope
        message = _message_of(delivery, arrived, transaction)
        self.handled += 1
        span: SpanLike = NOOP_SPAN
        if tracing.tracer is not None and envelope.headers:
            span = start_handle_span(self._dispatcher.domain.name, self.name, envelope)
        try:
            if not envelope.destination.is_complete:
                waited_s = self._dispatcher.loop.time() - arrived
                self._forward(envelope.with_elapsed(int(waited_s * 1000)), message)
                return
            result = (
                self._invoke_by_content_type(message)
                if span is NOOP_SPAN
                else self._invoke_in_span(span, message)
            )
        except BaseException as error:
            span.end(error)
            raise_if_fatal(error)
            self._fail(envelope, error, transaction)
            return
        if isinstance(result, Awaitable):
            task = self.track(result)
            task.add_done_callback(lambda done: self._on_result(envelope, done, transaction))
            if transaction is not None:
                self._transactional[envelope.id] = task
        else:
            self._succeed(envelope, result, transaction)

    def _succeed(self, envelope: Envelope, result: Any, transaction: Any) -> None:
        if transaction is not None:
            # The durable consumer waits for completion here; there is no remote caller.
            self._transactional.pop(envelope.id, None)
            self._dispatcher.on_reply(envelope.id, EMPTY_REPLY)
        elif envelope.wants_reply:
            self._dispatcher.reply(envelope, result, self.name)

    def _fail(self, envelope: Envelope, error: BaseException, transaction: Any) -> None:
        if transaction is not None:
            self._transactional.pop(envelope.id, None)
            failure = self._dispatcher.failure_of(error, self.name)
            self._dispatcher.statistics.failed += 1
            self._dispatcher.on_reply(envelope.id, failure)
        else:
            self._dispatcher.fail(envelope, error, self.name)

    def _is_expired(self, item: _MailboxItem) -> bool:
        budget_ms = item.delivery.envelope.handling_budget_ms
        if budget_ms is None:
            return False
        return self._dispatcher.loop.time() - item.arrived > budget_ms / 1000

    def _invoke_by_content_type(self, message: CellMessage) -> Any:
        if message.content_type == PING:
            return build_pong(message)
        if message.content_type == COMMAND:
            line = message.body
            self._check_command(line, message)
            return self.cell.on_command(line)
        return self.invoke(message)

    def _check_command(self, line: str, message: CellMessage) -> None:
        """Check a command that came from another domain; raises CommandRejectedError."""
        local_domain, allowed = self._dispatcher.domain.name, self._dispatcher.remote_commands
        is_local = all(hop.domain in (local_domain, LOCAL) for hop in message.path.hops)
        if allowed == "change" or is_local:
            return
        if allowed == "off" or not self.cell.is_read(line):
            raise CommandRejectedError(
                f"domain {local_domain} rejected a remote command: remote_commands is {allowed!r}; "
                "run it in that domain, or change remote_commands (admin.remote of a node)"
            )

    def _invoke_in_span(self, span: SpanLike, message: CellMessage) -> Any:
        """Call the handler inside of a span, which ends with the handler."""
        with span.scope:
            result = self._invoke_by_content_type(message)
            if not isinstance(result, Awaitable):
                span.end()
                return result
            task = asyncio.ensure_future(result)
        task.add_done_callback(
            lambda done: span.end(None if done.cancelled() else done.exception())
        )
        return task

    def _forward(self, envelope: Envelope, message: CellMessage) -> None:
        """Forward a message with further hops, if the cell allows it."""
        if not self.cell.should_forward(message):
            self._dispatcher.reject(
                envelope, NoRouteError, f"cell {self.name} does not forward messages"
            )
        elif len(envelope.source) > SOURCE_HOPS_MAX:
            text = f"too many hops at cell {self.name}: {len(envelope.source)}"
            self._dispatcher.reject(envelope, HopLimitExceededError, text)
        else:
            self._dispatcher.forward_from_cell(envelope.with_source_hop(self.cell.address))

    def _on_result(self, envelope: Envelope, task: asyncio.Future[Any], transaction: Any) -> None:
        try:
            result = task.result()
        except BaseException as error:
            self._fail(envelope, error, transaction)
        else:
            self._succeed(envelope, result, transaction)

    def _on_done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            # Marks the exception as retrieved, so that asyncio does not log it if no caller waits.
            task.exception()
        if self.mailbox:
            self._schedule()
        else:
            self._notify_idle()

    # Stopping.

    def _notify_idle(self) -> None:
        if self._idle is not None and self.is_idle and not self._idle.done():
            self._idle.set_result(None)

    @property
    def is_current(self) -> bool:
        return asyncio.current_task() in self._tasks

    async def wait_idle(self) -> None:
        """Wait until the mailbox is empty and no handler runs."""
        while not self.is_idle:
            if self._idle is None or self._idle.done():
                self._idle = self._dispatcher.loop.create_future()
            await asyncio.shield(self._idle)

    async def stop(self) -> None:
        """Reject the messages in the mailbox and cancel the running handlers."""
        for item in self.mailbox.pop_all():
            text = f"cell {self.name} stopped"
            self._dispatcher.reject(item.delivery.envelope, NoRouteError, text)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, still_running = await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)
            if still_running:
                self._dispatcher.warn(
                    f"end {self.name}", "cell %s: cancelled handlers still run", self.name
                )

    def __repr__(self) -> str:
        waiting, running = len(self.mailbox), len(self._tasks)
        return f"<CellRunner {self.name}: {waiting} waiting, {running} running>"


def raise_if_fatal(error: BaseException) -> None:
    """Raise errors that end the whole process; all others concern one message only."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error


def _message_of(delivery: LocalDelivery, arrived: float, transaction: Any) -> CellMessage:
    envelope = delivery.envelope
    ttl_ms = envelope.ttl_ms
    return CellMessage(
        envelope.payload,
        envelope.content_type,
        envelope.source.sender,
        delivery.route_name,
        envelope.id,
        envelope.wants_reply,
        None if ttl_ms is None else arrived + ttl_ms / 1000,
        envelope.session,
        envelope.headers,
        envelope.source,
        transaction,
    )
