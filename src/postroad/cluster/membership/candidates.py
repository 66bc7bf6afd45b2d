"""Candidates: nodes reported by others, admitted once they acknowledge a probe of this node.

Anyone who can send a datagram can report thousands of nodes that do not exist. So candidates are
queued by source (stochastic fair queueing): sources hash to buckets, buckets take turns, no bucket
has more than its share of probes in flight, and an overflow drops from the longest bucket.
Candidates reported over TCP, where the source address is real, have a queue of their own. However
many candidates one source reports, those of other sources are probed in turn.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import NamedTuple

import msgspec

from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import ProbeAckPacket, record_size
from postroad.cluster.membership.members import NUMBER_MAX, MemberRecord, MemberState
from postroad.core import Address

# Number of buckets to which sources hash.
_BUCKETS = 64
# Probes in flight per queue (one for TCP, one for datagrams), and per bucket of a queue.
_IN_FLIGHT_MAX = 48
_IN_FLIGHT_PER_BUCKET_MAX = 16
# Candidates queued from datagrams; from TCP as many as there may be members.
_QUEUED_MAX = 512
# Larger records are queued without their properties, which are requested later.
_RECORD_BYTES_MAX = 1_024


class GossipSource(NamedTuple):
    """Where a record came from, and over which transport."""

    address: Address
    in_stream: bool = False
    is_trusted: bool = False
    """Whether a seed or a member sent it as the reply to a request of this node."""

    @property
    def bucket(self) -> int:
        """The bucket of the candidates that this source reports."""
        return zlib.crc32(str(self.address).encode()) % _BUCKETS


class _CandidateProbe(msgspec.Struct):
    """A probe of a candidate, in flight."""

    record: MemberRecord
    bucket: int
    in_stream: bool
    stream_at: float
    """When to probe over TCP too; infinite once that is done."""
    until: float


class _CandidateQueue:
    """Queued candidates, with fair scheduling between buckets."""

    def __init__(self, queued_max: int) -> None:
        self._queued_max = queued_max
        self._buckets: dict[int, dict[str, MemberRecord]] = {}
        self._size = 0
        # Probes in flight, by bucket.
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
        """Return the next candidate that may be probed and its bucket, or None."""
        if self.in_flight.total() >= _IN_FLIGHT_MAX:
            return None
        for bucket in self._buckets:
            if self.in_flight[bucket] < _IN_FLIGHT_PER_BUCKET_MAX:
                record = self._pop(bucket)
                if bucket in self._buckets:
                    # The other buckets come first now.
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
    """Probes candidates and reports those that acknowledge."""

    def __init__(self, context: MembershipContext) -> None:
        self._context = context
        self._config = context.config
        self._member_table = context.member_table
        # Candidates reported by datagram, and over TCP.
        self._queues = {
            False: _CandidateQueue(_QUEUED_MAX),
            True: _CandidateQueue(context.config.members_max),
        }
        self._probes: dict[int, _CandidateProbe] = {}
        # Nonce of the probe in flight, by node name.
        self._nonces: dict[str, int] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a candidate reported over TCP is queued or being probed."""
        return bool(self._queues[True]) or any(probe.in_stream for probe in self._probes.values())

    def submit(self, record: MemberRecord, source: GossipSource, now: float) -> None:
        """Queue a node that is reported alive, to be probed in turn."""
        nonce = self._nonces.get(record.name)
        if nonce is not None and self._probes[nonce].record.identity == record.identity:
            return
        if record_size(record) > _RECORD_BYTES_MAX:
            record = record.without_properties()
        self._queues[source.in_stream].put(record, source.bucket)
        self._probe_queued(now)

    def deadline(self) -> float:
        """Return when `tick` has something to do."""
        probes = self._probes.values()
        return min((min(probe.stream_at, probe.until) for probe in probes), default=float("inf"))

    def tick(self, now: float) -> None:
        """Probe over TCP where no ack came, and drop candidates whose time is over."""
        for nonce, probe in list(self._probes.items()):
            if probe.until <= now:
                self._close(nonce)
            elif probe.stream_at <= now:
                probe.stream_at = float("inf")
                self._send_probe(nonce, probe.record, in_stream=True)
        self._probe_queued(now)

    def extend_deadlines(self, seconds: float) -> None:
        """Extend all deadlines by the time that this node stalled."""
        for probe in self._probes.values():
            probe.stream_at += seconds
            probe.until += seconds

    def on_ack(self, ack: ProbeAckPacket, now: float) -> tuple[bool, MemberRecord | None]:
        """Return whether the ack is for a candidate's probe, and the record to admit, if any."""
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
                    # Another process of that name is being probed; this one will be reported again.
                    continue
                nonce = self._context.new_nonce()
                timeout_s = self._config.probe_timeout_s * self._context.health.timeout_multiplier
                stream_at = now + self._config.indirect_probe_delay_s
                self._probes[nonce] = _CandidateProbe(
                    record, bucket, in_stream, stream_at, now + timeout_s
                )
                self._nonces[record.name] = nonce
                queue.in_flight[bucket] += 1
                self._send_probe(nonce, record, in_stream=False)

    def _send_probe(self, nonce: int, record: MemberRecord, *, in_stream: bool) -> None:
        """Probe the advertised address, with a short packet: any host may be there."""
        entry = self._member_table.entries.get(record.name)
        # A node that is dead here, or replaces a process, must learn that to be able to refute.
        records = [] if entry is None else [entry.record.without_properties()]
        is_joining = not self._context.is_member
        self._context.send_probe(nonce, record, records, is_joining=is_joining, in_stream=in_stream)

    def _close(self, nonce: int) -> _CandidateProbe:
        probe = self._probes.pop(nonce)
        del self._nonces[probe.record.name]
        in_flight = self._queues[probe.in_stream].in_flight
        in_flight[probe.bucket] -= 1
        if not in_flight[probe.bucket]:
            del in_flight[probe.bucket]
        return probe
