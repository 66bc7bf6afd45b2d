"""Nodes that others tell of: each is asked itself, and counts once it has answered.

Anybody who can send a datagram can tell of thousands of nodes that do not exist, or that are
somebody else. So who is told of waits to be asked, in a lane chosen by who told. Lanes take turns,
none has more than its share asked at one time, and when too many wait, the longest lane is
shortened; what is told over streams, whose sender is not made up, waits apart. However much one
tells, what others tell comes to its turn.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import NamedTuple

import msgspec

from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import ProbeAckPacket, ProbePacket, padding_for, record_size
from postroad.cluster.membership.members import NUMBER_MAX, MemberRecord, MemberState
from postroad.core import Address

# Who tells share so many lanes.
_LANES = 64
# Nodes asked at one time of those told of over streams, as many of those told of by datagram, and
# the share of them that one lane may have.
_ASKED_MAX = 48
_ASKED_OF_LANE_MAX = 16
# Nodes that wait after they were told of by datagram; over streams as many as may be members do.
_WAITING_MAX = 512
# Larger ones wait without their properties, which are asked for later.
_RECORD_BYTES_MAX = 1_024


class Teller(NamedTuple):
    """Who tells news, and how."""

    address: Address
    in_stream: bool = False
    is_trusted: bool = False
    """Whether a contact or a member answers a question of this node."""

    @property
    def lane(self) -> int:
        """The lane of those it tells of."""
        return zlib.crc32(str(self.address).encode()) % _LANES


class _Question:
    """A node that is being asked."""

    __slots__ = ("in_stream", "lane", "record", "stream_at", "until")

    def __init__(
        self, record: MemberRecord, lane: int, in_stream: bool, stream_at: float, until: float
    ) -> None:
        self.record = record
        self.lane = lane
        self.in_stream = in_stream
        # When the stream is tried too; then never.
        self.stream_at = stream_at
        self.until = until


class _Lanes:
    """Nodes that wait to be asked, the next first."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._lanes: dict[int, dict[str, MemberRecord]] = {}
        self._size = 0
        # How many are being asked, by lane.
        self.asked: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._size

    def put(self, record: MemberRecord, lane: int) -> None:
        waiting = self._lanes.setdefault(lane, {})
        known = waiting.get(record.name)
        if known is None:
            self._size += 1
        elif record.incarnation <= known.incarnation:
            return
        waiting[record.name] = record
        if self._size > self._waiting_max:
            longest = max(self._lanes, key=lambda it: len(self._lanes[it]))
            self._pop(longest)

    def take(self) -> tuple[MemberRecord, int] | None:
        """The next one that may be asked, and its lane."""
        if self.asked.total() >= _ASKED_MAX:
            return None
        for lane in self._lanes:
            if self.asked[lane] < _ASKED_OF_LANE_MAX:
                record = self._pop(lane)
                if lane in self._lanes:
                    # It is the others' turn now.
                    self._lanes[lane] = self._lanes.pop(lane)
                return record, lane
        return None

    def _pop(self, lane: int) -> MemberRecord:
        waiting = self._lanes[lane]
        record = waiting.pop(next(iter(waiting)))
        self._size -= 1
        if not waiting:
            del self._lanes[lane]
        return record


class Vetting:
    """All nodes that were told of and have not answered yet."""

    def __init__(self, voice: MembershipContext) -> None:
        self._voice = voice
        self._config = voice.config
        self._roster = voice.roster
        # Told of by datagram, and over a stream.
        self._lanes = {False: _Lanes(_WAITING_MAX), True: _Lanes(voice.config.members_max)}
        self._questions: dict[int, _Question] = {}
        # Whom the questions are about.
        self._asked: dict[str, int] = {}

    @property
    def is_busy(self) -> bool:
        """Whether somebody told of over a stream is to be asked, or may answer yet."""
        return bool(self._lanes[True]) or any(it.in_stream for it in self._questions.values())

    def consider(self, record: MemberRecord, teller: Teller, now: float) -> None:
        """A node is said to live: have it asked in its turn."""
        number = self._asked.get(record.name)
        if number is not None and self._questions[number].record.identity == record.identity:
            return
        if record_size(record) > _RECORD_BYTES_MAX:
            record = record.without_properties()
        self._lanes[teller.in_stream].put(record, teller.lane)
        self._ask_waiting(now)

    def deadline(self) -> float:
        """When `tick` has something to do."""
        questions = self._questions.values()
        return min((min(it.stream_at, it.until) for it in questions), default=float("inf"))

    def tick(self, now: float) -> None:
        """Try the stream where datagrams are not answered, and give up who is silent."""
        for number, question in list(self._questions.items()):
            if question.until <= now:
                self._close(number)
            elif question.stream_at <= now:
                question.stream_at = float("inf")
                self._ask(number, question.record, in_stream=True)
        self._ask_waiting(now)

    def postpone(self, seconds: float) -> None:
        """This node stood still meanwhile."""
        for question in self._questions.values():
            question.stream_at += seconds
            question.until += seconds

    def on_ack(self, ack: ProbeAckPacket, now: float) -> tuple[bool, MemberRecord | None]:
        """Whether that answers a question of this kind; and who it is that has answered."""
        if ack.nonce not in self._questions:
            return False, None
        record = self._close(ack.nonce).record
        self._ask_waiting(now)
        is_itself = (ack.name, ack.instance, ack.leave_digest) == (
            record.name,
            record.instance,
            record.leave_digest,
        )
        if not (is_itself and ack.is_member and 0 <= ack.incarnation < NUMBER_MAX):
            return True, None
        return True, msgspec.structs.replace(
            record,
            state=MemberState.ALIVE,
            incarnation=ack.incarnation,
            reported_by="",
            leave_secret=b"",
        )

    def _ask_waiting(self, now: float) -> None:
        for in_stream, lanes in self._lanes.items():
            while (taken := lanes.take()) is not None:
                record, lane = taken
                if record.name in self._asked:
                    # Another process of that name is being asked; this one is told of again.
                    continue
                number = self._voice.new_nonce()
                timeout_s = self._config.probe_timeout_s * self._voice.health.timeout_multiplier
                stream_at = now + self._config.indirect_after_s
                self._questions[number] = _Question(
                    record, lane, in_stream, stream_at, now + timeout_s
                )
                self._asked[record.name] = number
                lanes.asked[lane] += 1
                self._ask(number, record, in_stream=False)

    def _ask(self, number: int, record: MemberRecord, *, in_stream: bool) -> None:
        """Ask where it is said to be, with as few bytes as it takes: anybody may be there."""
        own, known = self._roster.local, self._roster.entries.get(record.name)
        # Whoever is thought dead, or succeeds somebody, must hear of it to be able to object.
        news = [] if known is None else [known.record.without_properties()]
        ping = ProbePacket(
            nonce=number,
            name=own.name,
            instance=own.instance,
            is_joining=not self._voice.is_member,
            records=news,
            padding=padding_for(record.name),
        )
        self._voice.send(record.address, ping, to=record.name, in_stream=in_stream)

    def _close(self, number: int) -> _Question:
        question = self._questions.pop(number)
        del self._asked[question.record.name]
        asked = self._lanes[question.in_stream].asked
        asked[question.lane] -= 1
        if not asked[question.lane]:
            del asked[question.lane]
        return question
