"""Bootstrap from seeds, and periodic push-pull sync with random members.

Seeds where no member is known are queried again and again, with backoff; so are members declared
dead, because both halves of a partitioned cluster declare each other dead.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import (
    GossipPacket,
    SyncReplyPacket,
    SyncRequestPacket,
    fit_records,
)
from postroad.cluster.membership.members import MemberRecord, MemberState
from postroad.core import Address
from postroad.core.timing import backoff

# Seeds queried at a time, and the interval between such batches.
_BATCH_MAX = 6
_BATCH_INTERVAL_S = 0.1
# Sync requests in flight; the oldest is dropped for a new one.
_PENDING_MAX = 64
# Jitter of the sync interval, so that nodes do not sync in step.
_JITTER = 0.2
_RETRY_INITIAL_S = 0.5
# Unknown senders queried per probe interval: any host can pretend to be one.
_UNKNOWN_QUERIES_MAX = 8


class _Seed(msgspec.Struct):
    """An address where a node of the cluster may be."""

    due: float
    attempts: int = 0
    has_replied: bool = False
    name: str | None = None
    """Name of the node that replied there last."""


class StateSync:
    """Sends sync requests to seeds and members, and replies to theirs."""

    def __init__(self, context: MembershipContext) -> None:
        self._context = context
        self._config = context.config
        self._member_table = context.member_table
        self._seeds: dict[Address, _Seed] = {}
        self._pending: dict[int, Address] = {}
        self._next_sync = 0.0
        self._next_batch = 0.0
        # Next sync interval: short at first, while this node and perhaps others are new.
        self._sync_interval_s = min(self._config.probe_interval_s, self._config.sync_interval_s)
        # Seeds where no member is known, as of a revision of the member table.
        self._unknown_seeds: list[Address] = []
        self._unknown_revision = -1
        # Unknown senders that were queried, and when they may be queried again.
        self._recent_queries: dict[Address, float] = {}

    def start(self, now: float) -> None:
        self._next_sync = now + self._interval_s()

    def set_seeds(self, addresses: Iterable[Address], now: float) -> bool:
        """Replace the seeds; return whether any is not this node itself."""
        remote_addresses = [
            address for address in addresses if address != self._member_table.local.address
        ]
        self._seeds = {
            address: self._seeds.get(address) or _Seed(now) for address in sorted(remote_addresses)
        }
        self._unknown_revision = -1
        return bool(self._seeds)

    def query_unknown(self, address: Address, now: float) -> None:
        """Query an unknown node at the address for its name and state."""
        if self._is_known(address, None):
            return
        self._recent_queries = {
            queried: until for queried, until in self._recent_queries.items() if until > now
        }
        if address not in self._recent_queries and len(self._recent_queries) < _UNKNOWN_QUERIES_MAX:
            self._recent_queries[address] = now + self._config.probe_interval_s
            self._send_sync_request(address)

    def deadline(self) -> float:
        """Return when `tick` has something to do."""
        due = min(
            (self._seeds[address].due for address in self._list_unknown_seeds()),
            default=float("inf"),
        )
        return min(self._next_sync, max(due, self._next_batch))

    def tick(self, now: float) -> None:
        """Send the sync requests that are due."""
        if self._next_batch <= now:
            self._query_seeds(now)
        if self._next_sync <= now:
            self._next_sync = now + self._interval_s()
            self._sync_with_random_member()

    def _query_seeds(self, now: float) -> None:
        """Query some seeds that are due: those with the fewest attempts first, in random order."""
        due = [address for address in self._list_unknown_seeds() if self._seeds[address].due <= now]
        if due:
            self._next_batch = now + _BATCH_INTERVAL_S
        self._context.rng.shuffle(due)
        due.sort(key=lambda address: self._seeds[address].attempts)
        for address in due[:_BATCH_MAX]:
            seed = self._seeds[address]
            seed.attempts += 1
            seed.due = now + backoff(
                seed.attempts,
                initial_delay_s=_RETRY_INITIAL_S,
                max_delay_s=self._config.sync_interval_s,
                jitter=self._context.rng.random(),
            )
            self._send_sync_request(address)

    def _sync_with_random_member(self) -> None:
        """Sync with one random member, and with one dead member in case it is back."""
        for entry in self._context.sample_members(1):
            self._send_sync_request(entry.record.address)
        dead = [
            entry
            for entry in self._member_table.tombstones.values()
            if entry.state is MemberState.DEAD
        ]
        for entry in self._context.rng.sample(dead, min(1, len(dead))):
            self._send_sync_request(entry.record.address)

    def _send_sync_request(self, address: Address) -> None:
        local = self._member_table.local
        nonce = self._context.new_nonce()
        while len(self._pending) >= _PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        self._pending[nonce] = address
        first = (local,) if self._context.is_member else ()
        request = SyncRequestPacket(
            nonce=nonce,
            digest=self._member_table.digest(),
            records=self._context.gossip_records(*first, in_stream=True),
        )
        self._context.send(address, request, in_stream=True)

    def _list_unknown_seeds(self) -> list[Address]:
        if self._unknown_revision != self._member_table.revision:
            self._unknown_revision = self._member_table.revision
            seeds = self._seeds.items()
            self._unknown_seeds = [
                address for address, seed in seeds if not self._is_known(address, seed.name)
            ]
        return self._unknown_seeds

    def _is_known(self, address: Address, name: str | None) -> bool:
        """Return whether the node at the address is a member already."""
        if name is not None and name in self._member_table.active:
            return True
        return bool(self._member_table.names_at(address))

    def _interval_s(self) -> float:
        interval_s = self._sync_interval_s
        self._sync_interval_s = min(2 * interval_s, self._config.sync_interval_s)
        return interval_s * (1 + _JITTER * (2 * self._context.rng.random() - 1))

    def sync_with_members(self, count: int) -> None:
        """Sync with some random members at once."""
        for entry in self._context.sample_members(count, with_suspects=True):
            self._send_sync_request(entry.record.address)

    def is_seed(self, address: Address) -> bool:
        return address in self._seeds

    def requested_address(self, nonce: int) -> Address | None:
        """Return the address of the sync request with this nonce, if a reply is still expected."""
        return self._pending.get(nonce)

    def is_trusted(self, nonce: int) -> bool:
        """Return whether the request went to a seed or a member, not to an unknown sender."""
        address = self._pending.get(nonce)
        return address is not None and (
            address in self._seeds or bool(self._member_table.names_at(address))
        )

    # Requests and replies.

    def on_request(self, request: SyncRequestPacket) -> SyncReplyPacket:
        """Return the full state, or no records if the digests agree."""
        local = self._member_table.local
        agrees = request.digest == self._member_table.digest()
        return SyncReplyPacket(
            nonce=request.nonce,
            agrees=agrees,
            name=local.name,
            instance=local.instance,
            is_member=self._context.is_member,
            records=[] if agrees else self._fit(self._all_records()),
        )

    def on_reply(self, sync: SyncReplyPacket) -> bool:
        """Handle a reply, whose records have been applied; send back what the other lacks.

        Returns whether this node can join now: a member has replied, or every seed has.
        """
        address = self._pending.pop(sync.nonce, None)
        if address is None:
            return False
        seed = self._seeds.get(address)
        if seed is not None:
            seed.has_replied = True
        if sync.instance == self._member_table.local.instance:
            # This node itself under another address. It is queried again, for another node may be
            # there later.
            return self._have_all_replied()
        if seed is not None:
            seed.name, seed.attempts = sync.name, 0
            self._unknown_revision = -1
        if not sync.agrees and self._context.is_member:
            received = {record.name: record for record in sync.records}
            newer = [
                record
                for record in self._all_records()
                if (theirs := received.get(record.name)) is None or _is_newer(record, theirs)
            ]
            if newer:
                packet = GossipPacket(records=self._fit(newer))
                self._context.send(address, packet, in_stream=True)
        return sync.is_member or self._have_all_replied()

    def _have_all_replied(self) -> bool:
        return all(seed.has_replied for seed in self._seeds.values())

    def _all_records(self) -> list[MemberRecord]:
        local = [self._member_table.local] if self._context.is_member else []
        return local + self._member_table.records()

    def _fit(self, records: list[MemberRecord]) -> list[MemberRecord]:
        """Return what fits into a packet; of a very large state a random part each time."""
        capacity = self._config.stream_bytes_max
        fitting = fit_records(records, capacity, full_bytes_max=capacity)
        if len(fitting) < len(records):
            self._context.rng.shuffle(records)
            fitting = fit_records(records, capacity, full_bytes_max=capacity)
        return fitting


def _is_newer(ours: MemberRecord, theirs: MemberRecord) -> bool:
    if ours.instance != theirs.instance:
        return ours.supersedes(theirs)
    return ours.precedence > theirs.precedence or ours.version > theirs.version
