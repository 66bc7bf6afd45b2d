"""All that one flow says and hears: its sessions, and the signals sent to it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from postroad.core.errors import UsageError

from . import requests as ask_for
from . import values
from .asks import Ask
from .errors import FlowError, PeerFailed, SessionEnded, SessionRejected, SignalsFull
from .events import Heard, KeptSignal, Signalled, Transition
from .head import Head, Trouble, show_id
from .life import Status
from .messages import Confirm, Data, End, Failed, Initial, Message, Rejection, SessionKey
from .records import Kind, Record
from .session import Cause, Kept, Reaction, SessionEnd, State

_TOLD_BY_OTHERS = tuple(
    f"{it.__module__}:{it.__qualname__}" for it in (PeerFailed, SessionEnded, SessionRejected)
)


class Silence(NamedTuple):
    """Nothing more comes from a session."""

    error: FlowError
    number: int

    def encode(self) -> bytes:
        """What is recorded with the error."""
        return values.encode(self.number, "the number of a session")


class Dialogues:
    """The sessions of a flow, and what waits in them.

    Args:
        head: of the flow.
        heard_max: messages of a session that may wait for the code.
        app: the application its code belongs to.

    Attributes:
        signals_max: how many may wait for the code.
        signals_bytes_max: how large they may be together.
    """

    __slots__ = (
        "_app",
        "_head",
        "_heard_max",
        "_signals",
        "_signals_bytes",
        "has_kept",
        "opened",
        "sessions",
        "signals_bytes_max",
        "signals_max",
    )

    def __init__(self, head: Head, heard_max: int, app: str = "") -> None:
        self._head = head
        self._app = app
        self._heard_max = heard_max
        self.signals_max = 10_000
        self.signals_bytes_max = 1 << 26
        self.sessions: dict[int, SessionEnd] = {}
        self._signals: dict[str, deque[KeptSignal]] = {}
        self._signals_bytes = 0
        # How many were opened, in this run of the code and those before.
        self.opened = head.opened
        # Whether there may be something in the store that was not read.
        self.has_kept = False
        if (origin := head.origin) is not None:
            end = SessionEnd(origin.key, origin.peer, 0, is_initiator=False)
            end.hear(Initial(origin.flow, origin.version, origin.app))
            if head.run > 1:
                # It was ended when the flow began anew.
                end.do(Cause.CLOSE)
            self.sessions[0] = end

    def recall(
        self,
        records: Sequence[Record],
        kept: Iterable[tuple[int, Kept]],
        signals: Iterable[KeptSignal],
    ) -> None:
        """Bring the sessions to where the records left them; no code is needed for that."""
        for record in records:
            for number, peer in zip(record.sessions, record.peers, strict=True):
                _recall_record(self._session(number, peer), record)
        for number, it in kept:
            self.has_kept = True
            end = self.sessions.get(number)
            if end is None:
                continue
            # Whether it is to be kept was decided when it came.
            end.hear(it.message)
            if not isinstance(it.message, Confirm):
                end.heard.append(it)
        for signal in signals:
            self.has_kept = True
            self._keep_signal(signal)

    def _keep_signal(self, signal: KeptSignal) -> None:
        self._signals.setdefault(signal.name, deque()).append(signal)
        self._signals_bytes += len(signal.payload)

    def _session(self, number: int, peer: str) -> SessionEnd:
        end = self.sessions.get(number)
        if end is None:
            key = SessionKey(self._head.id, number)
            end = self.sessions[number] = SessionEnd(key, peer, number, is_initiator=True)
        return end

    def open(self, peer: str, scope: object | None) -> SessionEnd:
        """A new session; nobody is told before something is said in it."""
        self.opened += 1
        end = self._session(self.opened, peer)
        end.scope = scope
        return end

    def check_own(self, ask: ask_for.SessionAsk) -> None:
        """Raise UsageError if it is about a session that another flow has."""
        for end in ask.ends:
            if self.sessions.get(end.number) is not end:
                raise UsageError(
                    f"the session with {end.peer} belongs to another flow, or to another run of "
                    "this one: a flow uses sessions that its own code has opened"
                )

    # Hearing.

    def hear(self, event: Heard, transition: Transition) -> None:
        """Keep what the other end of a session says, until the code asks for it."""
        if event.receipt is not None:
            transition.receipts.append(event.receipt)
        end = self.sessions.get(event.number)
        if end is None or (event.peer and end.peer != event.peer):
            # Of a session that nobody opened, or by somebody who has no part in it.
            return
        for message in event.messages:
            if isinstance(message, Initial) and not transition.is_new:
                # A session is opened once.
                continue
            if len(end.heard) >= self._heard_max:
                self._stem(end, transition)
            if not end.hear(message):
                continue
            if isinstance(message, Initial):
                assert message.payload is not None
                message = Data(message.payload)
            kept = Kept(message)
            transition.keeps.append((end.number, kept))
            if not isinstance(message, Confirm):
                end.heard.append(kept)

    def _stem(self, end: SessionEnd, transition: Transition) -> None:
        """Too much was said that the code has not asked for: end the session for both."""
        if end.do(Cause.FAIL) is not Reaction.SAY_ERROR:
            return
        text = f"more than {self._heard_max} messages wait to be received"
        failed = Failed(values.digest(self._head.entropy).hex(), "Overflow", text)
        say(transition, end, failed)
        end.heard.append(Kept(failed))
        transition.keeps.append((end.number, end.heard[-1]))

    def hear_signal(self, event: Signalled, transition: Transition, *, is_wanted: bool) -> None:
        """Keep a signal until the code asks for it; raises SignalsFull if too many wait."""
        # What the code waits for does not have to wait itself.
        if not is_wanted and sum(map(len, self._signals.values())) >= self.signals_max:
            raise SignalsFull(
                f"{self.signals_max} signals wait for flow {show_id(self._head.id)} already: try "
                f"again when it has asked for some, and see that it asks for {event.name!r}"
            )
        if not is_wanted and self._signals_bytes + len(event.payload) > self.signals_bytes_max:
            raise SignalsFull(
                f"signals of {self._signals_bytes} bytes wait for flow {show_id(self._head.id)} "
                f"already, and {self.signals_bytes_max} is the most: try again when it has asked "
                f"for some, and see that it asks for {event.name!r}"
            )
        signal = KeptSignal(event.name, event.payload)
        self._keep_signal(signal)
        transition.signals.append(signal)

    def settle(self, transition: Transition) -> None:
        """What is kept now is in the store from now on; nobody asks for it when all is over."""
        if transition.is_over:
            transition.keeps.clear()
            transition.signals.clear()
        elif transition.keeps or transition.signals:
            self.has_kept = True

    # Giving the code what it asks for.

    def find(self, ask: Ask, transition: Transition) -> bytes | Silence | None:
        """What there is for something the code waits for; it is taken. None if there is nothing."""
        if isinstance(ask, ask_for.Receive):
            return self._find_received(ask, transition)
        if isinstance(ask, ask_for.Signal):
            return self._find_signal(ask, transition)
        if isinstance(ask, ask_for.Info):
            return _find_info(ask.ends[0])
        return None

    def _find_received(
        self, ask: ask_for.Receive, transition: Transition
    ) -> bytes | Silence | None:
        for end in ask.ends:
            if end.heard and not isinstance(end.heard[0].message, Data):
                return Silence(error_of(self._take(end, transition), end.peer), end.number)
            if _is_silent(end):
                return _silence_of(end)
        if not all(end.heard for end in ask.ends):
            return None
        messages = [self._take(end, transition) for end in ask.ends]
        payloads = [it.payload for it in messages if isinstance(it, Data)]
        return payloads[0] if ask.is_one else values.encode(payloads, "what was received")

    def _find_signal(self, ask: ask_for.Signal, transition: Transition) -> bytes | None:
        """The first signal that is of the type the code wants; others are dropped."""
        while waiting := self._signals.get(ask.name):
            signal = waiting.popleft()
            if not waiting:
                del self._signals[ask.name]
            payload = self._take_signal(signal, transition)
            problem = values.problem_of(payload, ask.type)
            if problem is None:
                return payload
            refusal = f"signal {ask.name!r} cannot have this value: {problem}"
            transition.refusals = [*transition.refusals, refusal]
        return None

    def _take(self, end: SessionEnd, transition: Transition) -> Message:
        kept = end.heard.popleft()
        if kept.id:
            transition.takes.append(kept.id)
        else:
            transition.keeps = [it for it in transition.keeps if it[1] is not kept]
        return kept.message

    def _take_signal(self, signal: KeptSignal, transition: Transition) -> bytes:
        self._signals_bytes -= len(signal.payload)
        if signal.id:
            transition.takes.append(signal.id)
        else:
            transition.signals = [it for it in transition.signals if it is not signal]
        return signal.payload

    # Saying.

    def perform(self, ask: ask_for.SessionAsk, transition: Transition) -> None:
        """Say what the code wants said."""
        if not isinstance(ask, ask_for.Close):
            for end in ask.ends:
                _check_can_send(end)
        if isinstance(ask, ask_for.Send):
            for end, payload in zip(ask.ends, ask.payloads, strict=True):
                is_first = end.do(Cause.SEND) is Reaction.SAY_INITIAL
                say(transition, end, self._initial(end, payload) if is_first else Data(payload))
        elif isinstance(ask, ask_for.Open):
            for end in ask.ends:
                end.do(Cause.SEND)
                say(transition, end, self._initial(end, None))
        else:
            for end in ask.ends:
                _close(end, transition)

    def confirm(self, transition: Transition) -> None:
        """Tell whoever opened the session that its responder has begun, if it does not know."""
        if self._head.origin is not None and not self._head.is_confirmed:
            self._head.is_confirmed = True
            say(transition, self.sessions[0], Confirm(*self._introduce(None)))

    def close_all(self, transition: Transition) -> None:
        """The flow has finished."""
        for end in self.sessions.values():
            _close(end, transition)

    def fail_all(self, trouble: Trouble, was: Status, transition: Transition) -> None:
        """The flow has failed, or was ended."""
        kind = trouble.failure.kind
        # What others told this flow is not passed on, and faults are nobody else's business.
        is_told = self._head.status is Status.FAILED and not kind.startswith(_TOLD_BY_OTHERS)
        for end in self.sessions.values():
            if end.do(Cause.FAIL) is not Reaction.SAY_ERROR:
                continue
            if was in (Status.HELD, Status.QUEUED) and not end.is_initiator:
                say(transition, end, Rejection(trouble.failure.text, trouble.error_id))
            elif is_told:
                name, text = kind.rpartition(":")[2], trouble.failure.text
                say(transition, end, Failed(trouble.error_id, name, text))
            else:
                say(transition, end, Failed(trouble.error_id))

    def _initial(self, end: SessionEnd, payload: bytes | None) -> Initial:
        return Initial(*self._introduce(end.scope), payload)

    def _introduce(self, scope: object | None) -> tuple[str, int, str]:
        """How a part of the code is called: name, version, application."""
        head = self._head
        name: str = getattr(scope, "name", head.name)
        return name, getattr(scope, "version", head.version), getattr(scope, "app", self._app)


def say(transition: Transition, end: SessionEnd, message: Message) -> None:
    """Have something said with the next commit."""
    transition.says.setdefault(end.number, []).append(message)


def _close(end: SessionEnd, transition: Transition) -> None:
    if end.do(Cause.CLOSE) is Reaction.SAY_END:
        say(transition, end, End())


def _recall_record(end: SessionEnd, record: Record) -> None:
    if record.kind in (Kind.SEND, Kind.OPEN):
        if record.failure is None:
            end.do(Cause.SEND)
    elif record.kind is Kind.CLOSE:
        end.do(Cause.CLOSE)
    elif record.kind is Kind.RECEIVE and record.failure is not None:
        is_about = record.value is not None and values.decode(record.value) == end.number
        if is_about and end.state is not State.CLOSED:
            end.state = State.ENDED
    elif end.state is State.INITIATING and record.failure is None:
        end.state = State.OPEN


def _check_can_send(end: SessionEnd) -> None:
    if end.state is State.CLOSED:
        raise UsageError(f"the session with {end.peer} was closed here")
    if end.state is State.ENDED:
        if end.heard and not isinstance(end.heard[-1].message, Data):
            raise error_of(end.heard[-1].message, end.peer)
        raise SessionEnded(f"{end.peer} has ended this session")


def _is_silent(end: SessionEnd) -> bool:
    """Whether nothing more can come."""
    return not end.heard and end.state in (State.ENDED, State.CLOSED)


def _silence_of(end: SessionEnd) -> Silence:
    error = SessionEnded(f"{end.peer} says nothing more in this session")
    return Silence(error, end.number)


def _find_info(end: SessionEnd) -> bytes | Silence | None:
    if end.info is not None:
        return values.encode(end.info, "the flow at the other end")
    if end.heard:
        return Silence(error_of(end.heard[0].message, end.peer), end.number)
    return _silence_of(end) if _is_silent(end) else None


def error_of(message: Message, peer: str) -> FlowError:
    """What it means for the code that the other end says this instead of data."""
    if isinstance(message, Rejection):
        return SessionRejected(f"{peer} cannot hold this conversation: {message.text}")
    if isinstance(message, Failed):
        reason = message.text or f"error {message.error_id} in its own records"
        return PeerFailed(
            f"the flow of {peer} has failed: {reason}", peer, message.error_id, message.kind
        )
    return SessionEnded(f"{peer} has ended this session, and more was expected of it")
