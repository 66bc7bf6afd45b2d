"""Finding others, and comparing views with them: contacts first, later one member after another.

Who is said to be found somewhere and is not known as a member is asked again and again, ever less
often; so are members thought dead, because the two halves of a divided cluster think that of each
other.
"""

from __future__ import annotations

from collections.abc import Iterable

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

# Contacts asked at one time, and the pause before the next are.
_BATCH_MAX = 6
_BATCH_INTERVAL_S = 0.1
# Questions remembered; the oldest is forgotten for the next.
_PENDING_MAX = 64
# Pauses between two exchanges differ by this share, so that nodes do not fall into step.
_JITTER = 0.2
_RETRY_INITIAL_S = 0.5
# Strangers asked who they are within the interval of probes: anybody can pretend to be one.
_UNKNOWN_QUERIES_MAX = 8


class _Seed:
    """A place where a node of the cluster may be."""

    __slots__ = ("attempts", "due", "has_answered", "name")

    def __init__(self, due: float) -> None:
        self.due = due
        self.attempts = 0
        self.has_answered = False
        # Who answered there last.
        self.name: str | None = None


class StateSync:
    """Whom to ask for the view of the cluster, and what to do with the answers."""

    def __init__(self, context: MembershipContext) -> None:
        self._context = context
        self._config = context.config
        self._member_table = context.member_table
        self._seeds: dict[Address, _Seed] = {}
        self._pending: dict[int, Address] = {}
        self._next_sync = 0.0
        self._next_batch = 0.0
        # The pause before the next exchange: short while this node is new and others may be too.
        self._sync_interval_s = min(self._config.probe_interval_s, self._config.sync_interval_s)
        # Contacts that are not members, as of a revision of the roster.
        self._unknown_seeds: list[Address] = []
        self._unknown_revision = -1
        # Strangers that were asked who they are, and when that may be done again.
        self._recent_queries: dict[Address, float] = {}

    def start(self, now: float) -> None:
        """Start the clock."""
        self._next_sync = now + self._interval_s()

    def set_seeds(self, addresses: Iterable[Address], now: float) -> bool:
        """These are the places now; whether there are any but this node's own."""
        remote_addresses = [
            address for address in addresses if address != self._member_table.local.address
        ]
        self._seeds = {
            address: self._seeds.get(address) or _Seed(now) for address in sorted(remote_addresses)
        }
        self._unknown_revision = -1
        return bool(self._seeds)

    def query_unknown(self, address: Address, now: float) -> None:
        """A node nobody told of spoke up from there: ask it who it is."""
        if self._is_known(address, None):
            return
        self._recent_queries = {
            queried: until for queried, until in self._recent_queries.items() if until > now
        }
        if address not in self._recent_queries and len(self._recent_queries) < _UNKNOWN_QUERIES_MAX:
            self._recent_queries[address] = now + self._config.probe_interval_s
            self._send_sync_request(address)

    def deadline(self) -> float:
        """When `tick` has something to do."""
        due = min(
            (self._seeds[address].due for address in self._list_unknown_seeds()),
            default=float("inf"),
        )
        return min(self._next_sync, max(due, self._next_batch))

    def tick(self, now: float) -> None:
        """Ask those whose turn it is."""
        if self._next_batch <= now:
            self._query_seeds(now)
        if self._next_sync <= now:
            self._next_sync = now + self._interval_s()
            self._sync_with_random_member()

    def _query_seeds(self, now: float) -> None:
        """Ask a few of those whose turn it is: those asked least first, else at random."""
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
                first_s=_RETRY_INITIAL_S,
                max_s=self._config.sync_interval_s,
                chance=self._context.rng.random(),
            )
            self._send_sync_request(address)

    def _sync_with_random_member(self) -> None:
        """Compare views with one member, and see whether one of the dead is back."""
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
        """Whether the node at the address is a member already."""
        if name is not None and name in self._member_table.active:
            return True
        return bool(self._member_table.names_at(address))

    def _interval_s(self) -> float:
        interval_s = self._sync_interval_s
        self._sync_interval_s = min(2 * interval_s, self._config.sync_interval_s)
        return interval_s * (1 + _JITTER * (2 * self._context.rng.random() - 1))

    def sync_with_members(self, count: int) -> None:
        """Compare views with some members at once: something must be found out."""
        for entry in self._context.sample_members(count, with_suspects=True):
            self._send_sync_request(entry.record.address)

    def is_seed(self, address: Address) -> bool:
        """Whether discovery names the address."""
        return address in self._seeds

    def requested_address(self, nonce: int) -> Address | None:
        """Where the question of that number was asked, if it may be answered yet."""
        return self._pending.get(nonce)

    def is_trusted(self, nonce: int) -> bool:
        """Whether a contact or a member was asked that, and nobody who only spoke up."""
        address = self._pending.get(nonce)
        return address is not None and (
            address in self._seeds or bool(self._member_table.names_at(address))
        )

    # Requests and answers.

    def on_request(self, request: SyncRequestPacket) -> SyncReplyPacket:
        """Tell all, unless the other knows it."""
        local = self._member_table.local
        agrees = request.digest == self._member_table.digest()
        return SyncReplyPacket(
            nonce=request.nonce,
            agrees=agrees,
            name=local.name,
            instance=local.instance,
            is_member=self._context.is_member,
            records=[] if agrees else self._full_state(),
        )

    def on_reply(self, sync: SyncReplyPacket) -> bool:
        """Another's view, all heard by now. Tells what it lacks.

        Returns whether this node knows enough to join: a member has answered, or nobody is left
        who could.
        """
        address = self._pending.pop(sync.nonce, None)
        if address is None:
            return False
        seed = self._seeds.get(address)
        if seed is not None:
            seed.has_answered = True
        if sync.instance == self._member_table.local.instance:
            # This very node by another address. It is asked again, for others may be there later.
            return self._have_all_answered()
        if seed is not None:
            seed.name, seed.attempts = sync.name, 0
            self._unknown_revision = -1
        if not sync.agrees and self._context.is_member:
            received = {record.name: record for record in sync.records}
            newer = [
                record
                for record in self._all_records()
                if _is_newer(record, received.get(record.name))
            ]
            if newer:
                packet = GossipPacket(records=self._fit(newer))
                self._context.send(address, packet, in_stream=True)
        return sync.is_member or self._have_all_answered()

    def _have_all_answered(self) -> bool:
        return all(seed.has_answered for seed in self._seeds.values())

    def _all_records(self) -> list[MemberRecord]:
        local = [self._member_table.local] if self._context.is_member else []
        return local + self._member_table.records()

    def _full_state(self) -> list[MemberRecord]:
        return self._fit(self._all_records())

    def _fit(self, records: list[MemberRecord]) -> list[MemberRecord]:
        """What a packet can carry of them; of a very large view another part each time."""
        capacity = self._config.stream_bytes_max
        fitting = fit_records(records, capacity, full_bytes_max=capacity)
        if len(fitting) < len(records):
            self._context.rng.shuffle(records)
            fitting = fit_records(records, capacity, full_bytes_max=capacity)
        return fitting


def _is_newer(ours: MemberRecord, theirs: MemberRecord | None) -> bool:
    if theirs is None:
        return True
    if ours.instance != theirs.instance:
        return ours.supersedes(theirs)
    return ours.precedence > theirs.precedence or ours.version > theirs.version
