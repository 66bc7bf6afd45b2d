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
_BUCKETS = 64
# Nodes asked at one time of those told of over streams, as many of those told of by datagram, and
# the share of them that one lane may have.
_IN_FLIGHT_MAX = 48
_IN_FLIGHT_PER_BUCKET_MAX = 16
# Nodes that wait after they were told of by datagram; over streams as many as may be members do.
_QUEUED_MAX = 512
# Larger ones wait without their properties, which are asked for later.
_RECORD_BYTES_MAX = 1_024


class GossipSource(NamedTuple):
    """Who tells news, and how."""

    address: Address
    in_stream: bool = False
    is_trusted: bool = False
    """Whether a contact or a member answers a question of this node."""

    @property
    def bucket(self) -> int:
        """The lane of those it tells of."""
        return zlib.crc32(str(self.address).encode()) % _BUCKETS


class _CandidateProbe:
    """A node that is being asked."""

    __slots__ = ("bucket", "in_stream", "record", "stream_at", "until")

    def __init__(
        self, record: MemberRecord, bucket: int, in_stream: bool, stream_at: float, until: float
    ) -> None:
        self.record = record
        self.bucket = bucket
        self.in_stream = in_stream
        # When the stream is tried too; then never.
        self.stream_at = stream_at
        self.until = until


class _CandidateQueue:
    """Nodes that wait to be asked, the next first."""

    def __init__(self, queued_max: int) -> None:
        self._queued_max = queued_max
        self._buckets: dict[int, dict[str, MemberRecord]] = {}
        self._size = 0
        # How many are being asked, by lane.
        self.in_flight: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._size

    def put(self, record: MemberRecord, bucket: int) -> None:
        queued = self._buckets.setdefault(bucket, {})
        previous = queued.get(record.name)
        if previous is None:
            self._size += 1
        elif record.incarnation <= previous.incarnation:
            return
        queued[record.name] = record
        if self._size > self._queued_max:
            longest = max(self._buckets, key=lambda bucket: len(self._buckets[bucket]))
            self._pop(longest)

    def pop_next(self) -> tuple[MemberRecord, int] | None:
        """The next one that may be asked, and its lane."""
        if self.in_flight.total() >= _IN_FLIGHT_MAX:
            return None
        for bucket in self._buckets:
            if self.in_flight[bucket] < _IN_FLIGHT_PER_BUCKET_MAX:
                record = self._pop(bucket)
                if bucket in self._buckets:
                    # It is the others' turn now.
                    self._buckets[bucket] = self._buckets.pop(bucket)
                return record, bucket
        return None

    def _pop(self, bucket: int) -> MemberRecord:
        queued = self._buckets[bucket]
        record = queued.pop(next(iter(queued)))
        self._size -= 1
        if not queued:
            del self._buckets[bucket]
        return record


class CandidateVerifier:
    """All nodes that were told of and have not answered yet."""

    def __init__(self, context: MembershipContext) -> None:
        self._context = context
        self._config = context.config
        self._member_table = context.member_table
        # Told of by datagram, and over a stream.
        self._queues = {
            False: _CandidateQueue(_QUEUED_MAX),
            True: _CandidateQueue(context.config.members_max),
        }
        self._probes: dict[int, _CandidateProbe] = {}
        # Whom the questions are about.
        self._nonces: dict[str, int] = {}

    @property
    def is_busy(self) -> bool:
        """Whether somebody told of over a stream is to be asked, or may answer yet."""
        return bool(self._queues[True]) or any(probe.in_stream for probe in self._probes.values())

    def submit(self, record: MemberRecord, source: GossipSource, now: float) -> None:
        """A node is said to live: have it asked in its turn."""
        nonce = self._nonces.get(record.name)
        if nonce is not None and self._probes[nonce].record.identity == record.identity:
            return
        if record_size(record) > _RECORD_BYTES_MAX:
            record = record.without_properties()
        self._queues[source.in_stream].put(record, source.bucket)
        self._probe_queued(now)

    def deadline(self) -> float:
        """When `tick` has something to do."""
        probes = self._probes.values()
        return min((min(probe.stream_at, probe.until) for probe in probes), default=float("inf"))

    def tick(self, now: float) -> None:
        """Try the stream where datagrams are not answered, and give up who is silent."""
        for nonce, probe in list(self._probes.items()):
            if probe.until <= now:
                self._close(nonce)
            elif probe.stream_at <= now:
                probe.stream_at = float("inf")
                self._send_probe(nonce, probe.record, in_stream=True)
        self._probe_queued(now)

    def extend_deadlines(self, seconds: float) -> None:
        """This node stood still meanwhile."""
        for probe in self._probes.values():
            probe.stream_at += seconds
            probe.until += seconds

    def on_ack(self, ack: ProbeAckPacket, now: float) -> tuple[bool, MemberRecord | None]:
        """Whether that answers a question of this kind; and who it is that has answered."""
        if ack.nonce not in self._probes:
            return False, None
        record = self._close(ack.nonce).record
        self._probe_queued(now)
        is_same_process = (ack.name, ack.instance, ack.leave_digest) == (
            record.name,
            record.instance,
            record.leave_digest,
        )
        if not (is_same_process and ack.is_member and 0 <= ack.incarnation < NUMBER_MAX):
            return True, None
        return True, msgspec.structs.replace(
            record,
            state=MemberState.ALIVE,
            incarnation=ack.incarnation,
            reported_by="",
            leave_secret=b"",
        )

    def _probe_queued(self, now: float) -> None:
        for in_stream, queue in self._queues.items():
            while (candidate := queue.pop_next()) is not None:
                record, bucket = candidate
                if record.name in self._nonces:
                    # Another process of that name is being asked; this one is told of again.
                    continue
                nonce = self._context.new_nonce()
                timeout_s = self._config.probe_timeout_s * self._context.health.timeout_multiplier
                stream_at = now + self._config.indirect_after_s
                self._probes[nonce] = _CandidateProbe(
                    record, bucket, in_stream, stream_at, now + timeout_s
                )
                self._nonces[record.name] = nonce
                queue.in_flight[bucket] += 1
                self._send_probe(nonce, record, in_stream=False)

    def _send_probe(self, nonce: int, record: MemberRecord, *, in_stream: bool) -> None:
        """Ask where it is said to be, with as few bytes as it takes: anybody may be there."""
        local, entry = self._member_table.local, self._member_table.entries.get(record.name)
        # Whoever is thought dead, or succeeds somebody, must hear of it to be able to object.
        records = [] if entry is None else [entry.record.without_properties()]
        packet = ProbePacket(
            nonce=nonce,
            name=local.name,
            instance=local.instance,
            is_joining=not self._context.is_member,
            records=records,
            padding=padding_for(record.name),
        )
        self._context.send(record.address, packet, to=record.name, in_stream=in_stream)

    def _close(self, nonce: int) -> _CandidateProbe:
        probe = self._probes.pop(nonce)
        del self._nonces[probe.record.name]
        in_flight = self._queues[probe.in_stream].in_flight
        in_flight[probe.bucket] -= 1
        if not in_flight[probe.bucket]:
            del in_flight[probe.bucket]
        return probe
