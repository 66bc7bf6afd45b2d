"""The requests of a run, and what a reply or an error of each must be."""

from __future__ import annotations

import asyncio
import enum
import struct
from hashlib import blake2b

from postroad.core import errors
from postroad.net import MessagingService, RawMessage
from postroad.testing import LivenessFailure, SimCluster, require
from tests.simulation.wire.plan import Job, Kind, Plan

# The number of the call, at the start of every payload.
_NUMBER = struct.Struct(">Q")
_DIGEST_BYTES = 16
FAILURE_TEXT = "the handler failed"


class End(enum.Enum):
    REPLIED = "replied"
    SENT = "sent"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Call:
    """One request or one-way message, from its submission to its end."""

    def __init__(self, number: int, job: Job, now: float, *, is_probe: bool) -> None:
        self.number = number
        self.job = job
        self.is_probe = is_probe
        self.submitted_at = now
        self.deadline = now + job.timeout_s
        self.payload = _NUMBER.pack(number) + job.payload
        self.end: End | None = None
        # How often its handler was called.
        self.handled = 0
        # Whether an error said that it was never sent.
        self.is_not_sent = False

    @property
    def expected_reply(self) -> bytes:
        digest = blake2b(self.payload, digest_size=_DIGEST_BYTES).digest()
        size = max(self.job.reply_bytes, _DIGEST_BYTES)
        return (digest * (size // _DIGEST_BYTES + 1))[:size]

    def __str__(self) -> str:
        return f"call {self.number} ({self.job.kind.name}, {len(self.payload)} bytes)"


class Calls:
    """Submits calls through the service of the client, handles them at the server, checks both."""

    def __init__(self, sim: SimCluster, plan: Plan) -> None:
        self.all: dict[int, Call] = {}
        # Set once a byte was changed on its way: from then on any reply may arrive.
        self.is_tainted = False
        self._sim = sim
        self._plan = plan
        self._accepted_max = min(side.limits.frame_bytes_max for side in plan.sides.values())

    # Client.

    async def submit(
        self, service: MessagingService, address: str, job: Job, *, is_probe: bool = False
    ) -> None:
        call = Call(len(self.all) + 1, job, self._sim.now, is_probe=is_probe)
        self.all[call.number] = call
        try:
            end = await self._exchange(service, address, call)
        except errors.MessagingError as error:
            self._check_error(call, error)
            end = End.EXPIRED if isinstance(error, errors.ReplyTimeoutError) else End.FAILED
            self._log(call, f"{end.value}: {error!r}")
        except asyncio.CancelledError:
            end = End.CANCELLED
            self._log(call, end.value)
        call.end = end

    async def _exchange(self, service: MessagingService, address: str, call: Call) -> End:
        job, subject = call.job, call.job.kind.value
        wait = job.waits_for_connection and not call.is_probe
        if job.kind is Kind.LOG:
            await service.send(
                address, subject, call.payload, timeout=job.timeout_s, wait_for_connection=wait
            )
            return End.SENT
        request = asyncio.ensure_future(
            service.request(
                address, subject, call.payload, timeout=job.timeout_s, wait_for_connection=wait
            )
        )
        if job.cancel_after_s is not None and not self._is_undisturbed(call):
            asyncio.get_running_loop().call_later(job.cancel_after_s, request.cancel)
        reply = await request
        self._log(call, f"replied: {len(reply)} bytes")
        if not self.is_tainted:
            self.require(call, job.kind in (Kind.ECHO, Kind.NOW), "got a reply that was never sent")
            self.require(call, reply == call.expected_reply, f"got a wrong reply: {reply[:60]!r}")
        return End.REPLIED

    def _is_undisturbed(self, call: Call) -> bool:
        return call.is_probe or self._plan.is_calm

    def _check_error(self, call: Call, error: errors.MessagingError) -> None:
        call.is_not_sent = error.outcome is errors.Outcome.NOT_SENT
        kind = call.job.kind
        if self.is_tainted:
            return
        if isinstance(error, errors.RemoteHandlerError):
            is_expected = kind is Kind.FAIL and FAILURE_TEXT in str(error)
            is_expected |= len(call.expected_reply) > self._accepted_max
        elif isinstance(error, errors.NoHandlerError):
            is_expected = kind is Kind.NONE or not self._is_undisturbed(call)
        elif isinstance(error, errors.ReplyTimeoutError):
            is_expected = kind is Kind.NEVER or not self._is_undisturbed(call)
            self.require(call, self._sim.now >= call.deadline - 0.001, "expired early")
        elif isinstance(error, errors.MessageTooLargeError):
            size = len(call.payload) + len(kind.value)
            is_expected = size > self._accepted_max
        else:
            is_expected = not self._is_undisturbed(call)
        if isinstance(error, errors.ReplyTimeoutError) and not is_expected:
            raise LivenessFailure(f"{call} got no reply although nothing was wrong")
        self.require(call, is_expected, f"got an unexpected error: {error!r}")

    # Server.

    def register_handlers(self, service: MessagingService) -> None:
        for kind in (Kind.ECHO, Kind.NEVER):
            service.serve(kind.value, self._handle_slowly)
        for kind in (Kind.NOW, Kind.FAIL):
            service.serve(kind.value, self._handle)
        service.subscribe(Kind.LOG.value, self._handle)

    def _handle(self, message: RawMessage) -> bytes:
        call = self._receive(message)
        if call is None:
            return b""
        if call.job.kind is Kind.FAIL:
            raise RuntimeError(FAILURE_TEXT)
        return b"" if call.job.kind is Kind.LOG else call.expected_reply

    async def _handle_slowly(self, message: RawMessage) -> bytes:
        call = self._receive(message)
        if call is None:
            return b""
        if call.job.kind is Kind.NEVER:
            await asyncio.Event().wait()
        await asyncio.sleep(call.job.service_s)
        return call.expected_reply

    def _receive(self, message: RawMessage) -> Call | None:
        """Return the call of a message; None if a byte of it may have been changed."""
        number = _NUMBER.unpack_from(message.payload.ljust(_NUMBER.size))[0]
        call = self.all.get(number)
        is_intact = (
            call is not None
            and message.payload == call.payload
            and message.subject == call.job.kind.value
        )
        if self.is_tainted and not is_intact:
            return None
        require(is_intact, f"a handler got a message that was never sent: {message!r:.200}")
        assert call is not None
        self._log(call, "handled")
        call.handled += 1
        self.require(call, call.handled == 1, "was handled twice")
        return call

    # Checks.

    def check_deadlines(self, tolerated_s: float) -> None:
        """Every call ends by its deadline, or so many seconds later."""
        for call in self.all.values():
            if call.end is None and self._sim.now > call.deadline + tolerated_s:
                raise LivenessFailure(f"{call} has not ended by its deadline")

    def check_end(self) -> None:
        for call in self.all.values():
            if call.is_probe and call.end is not End.REPLIED:
                raise LivenessFailure(f"{call} got no reply after the network was healed")
            if call.is_not_sent and not self.is_tainted:
                self.require(call, call.handled == 0, "was handled, but reported as not sent")
            if call.end is End.SENT and self._plan.is_calm:
                self.require(call, call.handled == 1, "was lost")

    @property
    def abandoned(self) -> int:
        """Calls whose replies may arrive late."""
        return sum(call.end in (End.EXPIRED, End.CANCELLED) for call in self.all.values())

    def require(self, call: Call, condition: bool, problem: str) -> None:
        require(condition, f"{call} {problem}")

    def _log(self, call: Call, text: str) -> None:
        self._sim.log.add("call", str(call.number), f"{call.job.kind.name} {text:.200}")
