"""Turns a transition into a unit of the store: with its letters, and the inbox rows it consumes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import msgspec

from postroad.core.errors import ConfigError, PostroadError
from postroad.core.tracing import SpanKind, SpanLike
from postroad.durable import Mail, Transaction
from postroad.durable.consumption import Consumption
from postroad.durable.handling import Handling
from postroad.durable.posting import Post
from postroad.durable.shelf import Entry

from .commit import FlowCommit
from .events import Transition
from .machine import Machine
from .messages import QUEUE, Failed, Letter, Message, Rejection, encode_letter
from .resident import Resident
from .session import SessionEnd
from .traces import headers_of, part_of

# Room for what a letter has besides what is sent: names of flows and applications, mostly.
_LETTER_BYTES = 2_048
_MESSAGE_BYTES = 64
_LETTER_BYTES_MIN = 1_024

OnSettled = Callable[[FlowCommit, Exception | None], None]


class Writing:
    """Makes units of what machines say.

    Attributes:
        consumption: what the inbox rows are from.
        payload_max: size of the largest thing a flow may send.
    """

    def __init__(self, mail: Mail) -> None:
        self._clerk = mail.clerk
        self._next_mail_id = itertools.count(1).__next__
        self.consumption: Consumption | None = None
        size = mail.config.message_bytes_max
        if size < _LETTER_BYTES_MIN:
            raise ConfigError(
                f"message_bytes_max={size} of the mail is too little for flows: they need "
                f"{_LETTER_BYTES_MIN}"
            )
        self.payload_max = size - min(_LETTER_BYTES, size // 2)

    def number_from(self, first: int) -> None:
        """Number what is kept from here on."""
        self._next_mail_id = itertools.count(first).__next__

    def make_unit(
        self,
        resident: Resident,
        machine: Machine,
        transition: Transition,
        tx: Transaction | None,
        on_settled: OnSettled,
    ) -> FlowCommit:
        """The unit of a transition, and of what a step did in its transaction."""
        for _, kept in transition.keeps:
            kept.id = self._next_mail_id()
        for signal in transition.signals:
            signal.id = self._next_mail_id()
        posts = [] if tx is None else list(tx.posts)
        spans: list[SpanLike] = []
        for number, messages in transition.says.items():
            end = machine.dialogues.sessions[number]
            name = f"say {machine.head.name}"
            span = part_of(self._clerk.node, machine.head, name, SpanKind.PRODUCER, peer=end.peer)
            spans.append(span)
            posts += self._letters(end, messages, headers_of(span))
        handlings: Sequence[Handling] = ()
        if transition.receipts:
            handlings = self._finish(transition)
            if len(handlings) < len(transition.receipts):
                # What was consumed comes again: this must not be committed.
                resident.lane.is_broken = True
        return FlowCommit(
            machine.head,
            transition,
            resident.lane,
            has_kept=machine.dialogues.has_kept,
            posts=posts,
            handlings=handlings,
            on_settled=on_settled,
            node=self._clerk.node,
            spans=spans,
        )

    def _finish(self, transition: Transition) -> list[Handling]:
        """The inbox rows that are consumed, without those that come again all the same."""
        handlings: list[Handling] = []
        for receipt in transition.receipts:
            assert self.consumption is not None and isinstance(receipt, Entry)
            handling = self.consumption.finish(receipt)
            if handling is not None:
                self.consumption.expect(handling)
                handlings.append(handling)
        return handlings

    def _letters(
        self, end: SessionEnd, messages: list[Message], headers: Mapping[str, str] | None
    ) -> list[Post]:
        """What is said in one session, in as few letters as it fits into."""
        batches: list[list[Message]] = [[]]
        size = 0
        for message in messages:
            if isinstance(message, Failed | Rejection):
                message = _shorten(message, self.payload_max - _MESSAGE_BYTES)
            more = _size_of(message)
            if batches[-1] and size + more > self.payload_max:
                batches.append([])
                size = 0
            batches[-1].append(message)
            size += more
        return [self._letter(end, batch, headers) for batch in batches]

    def _letter(
        self, end: SessionEnd, batch: list[Message], headers: Mapping[str, str] | None
    ) -> Post:
        key = f"{end.key.flow:x}.{end.key.number:x}"
        letter = Letter(end.key, not end.is_initiator, batch)
        return self._clerk.post(end.peer, QUEUE, encode_letter(letter), key, headers=headers)

    def fail(self, receipt: object, error: Exception) -> None:
        """An inbox row cannot be consumed now; it comes again, and not for ever."""
        if isinstance(receipt, Entry):
            assert self.consumption is not None
            self.consumption.fail(receipt, error)

    def put_back(self, receipt: object, error: Exception) -> None:
        """An inbox row is not consumed after all; it comes again, after a fault not for ever."""
        if not isinstance(error, PostroadError):
            self.fail(receipt, error)
        elif isinstance(receipt, Entry):
            assert self.consumption is not None
            self.consumption.give_back(receipt)

    def drop(self, receipt: object) -> None:
        """An inbox row is for nobody any more."""
        if isinstance(receipt, Entry):
            assert self.consumption is not None
            self.consumption.acknowledge(receipt)


def _size_of(message: Message) -> int:
    """As many bytes as a message takes in a letter, besides names."""
    if isinstance(message, Failed):
        return len(f"{message.kind}{message.text}".encode()) + _MESSAGE_BYTES
    if isinstance(message, Rejection):
        return len(message.text.encode()) + _MESSAGE_BYTES
    return len(getattr(message, "payload", None) or b"") + _MESSAGE_BYTES


def _shorten(message: Failed | Rejection, size: int) -> Failed | Rejection:
    """The same with as much of its text as fits into a letter."""
    text = message.text or ""
    while (excess := _size_of(message) - size) > 0 and text:
        text = text.encode()[:-excess].decode(errors="ignore")
        message = msgspec.structs.replace(message, text=text)
    return message
