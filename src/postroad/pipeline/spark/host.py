"""The desk of a job, open to Spark's processes."""

from __future__ import annotations

import asyncio
import logging
import secrets

from postroad.core import Address, Limits, to_address
from postroad.net import Message, MessagingService
from postroad.pipeline.desk import Desk, Outcome
from postroad.pipeline.fused.outcome import PartOutcome, decode_part
from postroad.pipeline.program import Program
from postroad.pipeline.records import Delivery, KeptRoot
from postroad.pipeline.windows import DeltaMaker

from .certificate import CertificateFiles, make_certificate
from .questions import (
    CLUSTER,
    DESK,
    LIMITS,
    SUBJECT,
    Careful,
    DeskAddress,
    Discard,
    First,
    Latest,
    Leave,
    Parts,
    Plan,
    Question,
    RawChunk,
    ReadAgain,
    ReadSlice,
    Refuse,
    Settle,
    encode,
    read_question,
)

logger = logging.getLogger("postroad.pipeline")

_AGAIN_ROOTS = 1_000
_LEFT_MAX = 1_000
# What was found deadly comes again meanwhile, and is not found by another crash.
_CAREFUL_BATCHES = 50


class DeskHost:
    """Answers what Spark's processes ask.

    Whoever connects must prove the token first, and cannot send more than a few bytes before. Off
    this machine everything goes through TLS.

    Args:
        program: the job.
        desk: its desk; open.
        bind: where to listen; on a cluster, an address that its machines can reach.
        advertise: the host that they are told, if it is another.
        limits: every maximum and timeout.
    """

    def __init__(
        self,
        program: Program,
        desk: Desk,
        bind: str = "127.0.0.1:0",
        *,
        advertise: str = "",
        limits: Limits = LIMITS,
    ) -> None:
        self._program = program
        self._desk = desk
        self._bind = to_address(bind)
        self._advertise = Address(advertise, 0) if advertise else None
        self._limits = limits
        self._token = secrets.token_urlsafe(24)
        self._service: MessagingService | None = None
        self._admitting = asyncio.Lock()
        self._asking = 0
        # What parts of the batch came to, by their names.
        self._left: dict[str, PartOutcome] = {}
        # For so many more batches functions are tried first.
        self._careful_batches = 0
        self.refusal: str | None = None
        """Why workers cannot run the job, if they cannot."""

    async def start(self) -> DeskAddress:
        """Begin to answer; returns where."""
        certificate = b""
        if not self._bind.is_loopback:
            certificate = make_certificate()
            if not certificate:
                logger.warning(
                    "the desk at %s talks in clear text, as cryptography is not installed: "
                    "whoever can read the network reads what goes through the job",
                    self._bind,
                )
        with CertificateFiles(certificate) as tls:
            self._service = MessagingService(
                CLUSTER,
                DESK,
                self._bind,
                advertise=self._advertise,
                tls=tls,
                limits=self._limits,
                secret=self._token,
            )
            self._service.subscribe(SUBJECT, self._answer)
            await self._service.start()
        return DeskAddress(str(self._service.address), self._token, certificate)

    async def stop(self) -> None:
        """Answer no more."""
        if self._service is not None:
            await self._service.stop(grace=0)

    async def _answer(self, message: Message) -> bytes:
        return encode(await self._answer_question(read_question(message.payload)))

    async def _answer_question(self, question: Question) -> object:
        match question:
            case Latest():
                return await self._latest(question.after, question.wait_s)
            case First():
                return await self._desk.settled_upto()
            case Plan():
                return await self._desk.unsettled(question.after, question.upto)
            case ReadSlice():
                return await self._read_slice(question.number)
            case ReadAgain():
                roots = await self._desk.roots_again(question.number, question.after, _AGAIN_ROOTS)
                return [KeptRoot(it.root, it.generation, it.segment, it.published) for it in roots]
            case Careful():
                return self._careful_batches > 0
            case Leave():
                self._leave(question.name, decode_part(question.part))
                return True
            case Settle():
                return await self._settle(question)
            case Discard():
                parts = self._take(question.parts)
                await self._desk.discard([it for part in parts for it in part.staged])
                return True
            case Refuse():
                self.refusal = question.reason
                return True

    def suspect_functions(self) -> None:
        """Have functions tried in a process of their own for a while."""
        self._careful_batches = _CAREFUL_BATCHES

    @property
    def is_idle(self) -> bool:
        """Whether Spark is done with what it had, and asks for more."""
        return self._asking > 0

    async def _latest(self, after: int, wait_s: float) -> int:
        self._asking += 1
        try:
            async with self._admitting:
                return await self._desk.admit_after(after, wait_s)
        finally:
            self._asking -= 1

    async def _read_slice(self, number: int) -> list[RawChunk]:
        found = await self._desk.unsettled(number - 1, number)
        if not found:
            raise LookupError(f"delivery {number} is settled, or was delivered again since")
        chunks = await self._desk.read_chunks(found[0])
        return [RawChunk(it.source, list(it.positions), list(it.raws)) for it in chunks]

    def _leave(self, name: str, part: PartOutcome) -> None:
        self._left[name] = part
        # Attempts that Spark has given up leave theirs too.
        while len(self._left) > _LEFT_MAX:
            del self._left[next(iter(self._left))]

    def _take(self, parts: Parts) -> list[PartOutcome]:
        left = [self._left[name] for name in parts.left if name in self._left]
        return [*map(decode_part, parts.inline), *left]

    async def _settle(self, question: Settle) -> bool:
        parts = self._take(question.parts)
        if len(parts) < len(question.parts.inline) + len(question.parts.left):
            raise LookupError(f"not all parts of batch {question.batch} are here")
        deliveries = await self._find(parts)
        outcome = Outcome(deliveries)
        windows = DeltaMaker(self._program.plan)
        for part in parts:
            outcome.failed += part.failed
            outcome.staged += part.staged
            windows.merge(part.delta)
        outcome.delta = windows.delta
        await self._desk.settle(question.run, question.batch, outcome)
        # There is one batch at a time: nobody will ask for the rest.
        self._left.clear()
        self._careful_batches = max(self._careful_batches - 1, 0)
        return True

    async def _find(self, parts: list[PartOutcome]) -> list[Delivery]:
        """What the parts had; deliveries that are gone are still named, to be refused."""
        numbers = {number for part in parts for number in part.deliveries}
        if not numbers:
            return []
        known = await self._desk.unsettled(min(numbers) - 1, max(numbers))
        found = {it.number: it for it in known if it.number in numbers}
        return [found.get(number) or _gone(number) for number in sorted(numbers)]


def _gone(number: int) -> Delivery:
    return Delivery(number, "", None, 0, 0, 0, 0)
