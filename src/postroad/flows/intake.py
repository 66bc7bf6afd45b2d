"""Takes what other nodes say to flows out of the mail, and finds the flows it is for."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial

from postroad.core import fault_points as faults
from postroad.core.errors import Reject, StoreError
from postroad.core.tracing import SpanLike
from postroad.durable.consumption import Consumption
from postroad.durable.shelf import Entry

from . import tables
from .alarm import now_ms
from .definition import Definition
from .engine import Engine
from .events import Admitted, Heard
from .head import Head, Origin
from .life import Status
from .messages import QUEUE, Initial, Letter, Rejection, decode_letter, encode_letter
from .traces import keep, responding
from .values import digest

logger = logging.getLogger("postroad.flows")

TAKEN = faults.declare_fault_point("flows.letter.taken")
REJECTED = faults.declare_fault_point("flows.session.rejected")

# So many letters are taken up before others have their turn.
_IN_A_ROW_MAX = 64
_ENTROPY_BYTES = 16


class Intake:
    """The letters of flows, from the inbox to the machines."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None
        self._lookups: set[asyncio.Task[None]] = set()
        self._consumption: Consumption | None = None

    async def start(self) -> None:
        """Begin to take letters."""
        mail = self._engine.mail
        self._consumption = await mail.consumption_of(QUEUE)
        self._engine.writing.consumption = self._consumption
        # What a flow makes of a letter is in the same commit as the letter, if it is in memory.
        self._engine.store.writer.prompt.add(QUEUE)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._work(self._consumption), name="postroad flows")

    async def stop(self) -> None:
        """Take no more; letters stay where they are."""
        if self._task is not None:
            tasks = [self._task, *self._lookups]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Let the queue go, when everything that was taken is committed or put back."""
        if self._consumption is not None:
            self._engine.store.writer.prompt.discard(QUEUE)
            await self._consumption.close()
            self._engine.mail.let_go(QUEUE)

    async def _work(self, consumption: Consumption) -> None:
        in_a_row = 0
        while True:
            entry = consumption.take()
            if entry is None:
                await consumption.wait()
                in_a_row = 0
                continue
            try:
                self._take(consumption, entry)
            except Reject as error:
                consumption.fail(entry, error)
            except Exception as error:
                logger.exception("a letter to a flow could not be taken up")
                consumption.fail(entry, error)
            in_a_row += 1
            if in_a_row >= _IN_A_ROW_MAX:
                in_a_row = 0
                await asyncio.sleep(0)

    def _take(self, consumption: Consumption, entry: Entry) -> None:
        letter = decode_letter(entry.letter.body)
        peer = entry.home.sender
        TAKEN.hit(peer=peer)
        key = letter.key
        if letter.is_for_initiator:
            heard = Heard(key.number, letter.messages, entry, peer)
            self._engine.tell(key.flow, heard)
            return
        known = self._engine.responders.get((peer, key.flow, key.number))
        if known is not None:
            self._engine.tell(known, Heard(0, letter.messages, entry, peer))
        elif isinstance(letter.messages[0], Initial):
            self._begin(consumption, entry, letter, letter.messages[0])
        else:
            task = asyncio.get_running_loop().create_task(self._look_up(consumption, entry, letter))
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)

    async def _look_up(self, consumption: Consumption, entry: Entry, letter: Letter) -> None:
        """Find the flow that responds to a session, among those that are not in memory."""
        peer = entry.home.sender
        origin = Origin(peer, letter.key, "", 1, "")
        try:
            found = await self._engine.store.read(tables.find_responder, origin)
        except asyncio.CancelledError:
            consumption.give_back(entry)
            raise
        except StoreError as error:
            consumption.fail(entry, error)
            return
        if found is None:
            logger.debug("%s speaks in a session that nobody has here", peer)
            consumption.acknowledge(entry)
        else:
            self._engine.tell(found, Heard(0, letter.messages, entry, peer))

    def _begin(
        self, consumption: Consumption, entry: Entry, letter: Letter, initial: Initial
    ) -> None:
        """Somebody opens a session: have a flow respond to it, or tell why not."""
        engine, peer = self._engine, entry.home.sender
        definition = engine.registry.responder(initial.flow)
        refusal = definition and definition.refusal_of(initial.flow, initial.version)
        if refusal:
            self._reject(consumption, entry, letter, refusal)
            return
        now = now_ms()
        head = Head(
            id=engine.new_id(),
            name=initial.flow if definition is None else definition.name,
            version=1 if definition is None else definition.version,
            status=self._status(definition),
            entropy=os.urandom(_ENTROPY_BYTES),
            started_ms=now,
            origin=Origin(peer, letter.key, initial.flow, initial.version, initial.app),
        )
        if definition is not None and definition.timeout_s is not None:
            head.deadline_ms = now + round(definition.timeout_s * 1000)
        if definition is None:
            logger.warning(
                "%s opens a session of flow %r, and nothing here responds to it: it is kept",
                peer, initial.flow,
            )  # fmt: skip
        span = responding(engine.store.owner, head.name, entry)
        keep(head, span)
        done = engine.admit(head, Admitted(letter.messages, entry))
        # What came of it is known to the engine; nobody waits here.
        done.add_done_callback(partial(_end, span))

    def _status(self, definition: Definition[..., object] | None) -> Status:
        if definition is None or self._engine.admission.is_draining:
            return Status.HELD
        return Status.RUNNING if self._engine.admission.slots.free(definition) else Status.QUEUED

    def _reject(self, consumption: Consumption, entry: Entry, letter: Letter, text: str) -> None:
        """Tell the other end that nobody will talk to it, in one commit with its letter."""
        error_id = digest(os.urandom(8)).hex()
        answer = Letter(letter.key, True, [Rejection(text, error_id)])
        key = f"{letter.key.flow:x}.{letter.key.number:x}"
        clerk = self._engine.mail.clerk
        post = clerk.post(entry.home.sender, QUEUE, encode_letter(answer), key)
        REJECTED.hit(peer=entry.home.sender)
        unit = consumption.finish(entry, [post])
        if unit is not None:
            consumption.submit(unit)


def _end(span: SpanLike, done: asyncio.Future[None]) -> None:
    if not done.cancelled() and done.exception() is None:
        # Otherwise the letter comes again.
        span.end()
