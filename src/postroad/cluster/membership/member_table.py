"""The members that a node knows, and the rules by which it merges records of them.

Of two records of one process, the one with the higher incarnation is newer, and at the same
incarnation the one with the later state. Of two processes with one name, the one with the higher
incarnation is newer; but while the older one counts as active, the name conflict is resolved first.

A suspected member is declared dead in `MemberTable.expire_suspects` when its deadline has passed.
Its reply or refutation ends the suspicion before that; so do its leaving, and a newer process of
its name.
"""

from __future__ import annotations

import enum
import hashlib

import msgspec

from postroad.cluster.membership.config import MembershipConfig, RoundTripEstimator, Suspicion
from postroad.cluster.membership.gossip import GossipQueue
from postroad.cluster.membership.members import (
    GOSSIP_CAUSES,
    NUMBER_MAX,
    TRANSITIONS,
    Member,
    MemberRecord,
    MembershipEvent,
    MembershipEventType,
    MemberState,
    StateChangeCause,
    is_authentic_leave,
    to_member,
)
from postroad.core import Address

# Incarnations start at the wall clock in milliseconds. A jump of more than eight years above the
# known incarnation, and above what any clock may show, is rejected.
INCARNATION_JUMP_MAX = 1 << 38
_CLOCK_MAX = 1 << 42
# Members at one address: the current one, and earlier ones that are not declared dead yet. The
# limit keeps a host that acknowledges under any name from filling the table.
_NAMES_AT_ADDRESS_MAX = 8


class MergeResult(enum.Enum):
    """Result of merging a record into the table."""

    APPLIED = "applied"
    STALE = "stale"
    UNPROVEN = "unproven"
    NAME_CONFLICT = "name conflict"
    INCARNATION_OUT_OF_RANGE = "incarnation out of range"
    FORGED_LEAVE = "forged leave"
    TABLE_FULL = "too many members"

    @property
    def is_rejection(self) -> bool:
        """Whether the record is counted as rejected: a correct node would not send it."""
        return self in (
            MergeResult.INCARNATION_OUT_OF_RANGE,
            MergeResult.FORGED_LEAVE,
            MergeResult.TABLE_FULL,
        )


class MemberEntry:
    """One other member of the table, active or a tombstone."""

    def __init__(self, record: MemberRecord, now: float) -> None:
        self.record = record
        # When the member entered its state.
        self.since = now
        self.suspicion: Suspicion | None = None
        self.round_trip = RoundTripEstimator()
        # Version of the stored properties, and the newest version that is known to exist.
        self.properties_version = record.version if record.properties is not None else -1
        self.newest_properties_version = record.version
        # The public form, cached with the record from which it was built.
        self._member: tuple[MemberRecord, Member] | None = None

    @property
    def state(self) -> MemberState:
        return self.record.state

    def is_doubted(self, instance: int) -> bool:
        """Return whether this very process is suspected, dead or left here."""
        return self.record.instance == instance and self.state is not MemberState.ALIVE

    @property
    def member(self) -> Member:
        """The member in its public form."""
        if self._member is None or self._member[0] is not self.record:
            self._member = (self.record, to_member(self.record))
        return self._member[1]

    @property
    def lacks_properties(self) -> bool:
        """Whether a newer version of the properties exists than is stored."""
        return self.properties_version < self.newest_properties_version

    def update_properties(self, record: MemberRecord) -> bool:
        """Note the version of a record; store its properties and return True if they are new."""
        self.newest_properties_version = max(self.newest_properties_version, record.version)
        if record.properties is None or record.version <= self.properties_version:
            return False
        self.properties_version = record.version
        self.record = msgspec.structs.replace(
            self.record, version=record.version, properties=record.properties
        )
        return True


class MemberTable:
    """All other members that this node knows, and its own record."""

    def __init__(
        self, config: MembershipConfig, local: MemberRecord, gossip_queue: GossipQueue
    ) -> None:
        self._config = config
        self._gossip_queue = gossip_queue
        self.local = local
        # All others by name; of these the active ones, the suspected ones among the active, and the
        # dead and left ones, oldest first.
        self.entries: dict[str, MemberEntry] = {}
        self.active: dict[str, MemberEntry] = {}
        self.suspects: dict[str, MemberEntry] = {}
        self.tombstones: dict[str, MemberEntry] = {}
        # Active members whose newest properties have not arrived.
        self.missing_properties: dict[str, MemberEntry] = {}
        self._names_at: dict[Address, dict[str, None]] = {}
        # Drained by `Membership`.
        self.events: list[MembershipEvent] = []
        # Counts changes of the set of active members.
        self.revision = 0
        self._digest: bytes | None = None

    # Queries.

    @property
    def size(self) -> int:
        """Number of active members, this node included."""
        return len(self.active) + 1

    def names_at(self, address: Address) -> list[str]:
        """Return the active members at the address; more than one only during a conflict."""
        return list(self._names_at.get(address, ()))

    def first_at(self, address: Address) -> MemberEntry | None:
        """Return the member known longest at the address, or None."""
        names = self._names_at.get(address)
        return self.active[next(iter(names))] if names else None

    def records(self) -> list[MemberRecord]:
        """Return the records of all others, tombstones included."""
        return [entry.record for entry in self.entries.values()]

    def digest(self) -> bytes:
        """Return a digest that is equal at two nodes with the same view of all active members."""
        if self._digest is None:
            rows = [(self.local, self.local.version)]
            rows += [(entry.record, entry.properties_version) for entry in self.active.values()]
            summary = [
                (record.name, record.instance, record.precedence, version)
                for record, version in rows
            ]
            encoded = msgspec.msgpack.encode(sorted(summary))
            self._digest = hashlib.blake2b(encoded, digest_size=8).digest()
        return self._digest

    # Merging.

    def merge(self, record: MemberRecord, now: float) -> MergeResult:
        """Merge a record of another node, received from any source."""
        entry = self.entries.get(record.name)
        incarnation = 0 if entry is None else entry.record.incarnation
        highest = max(self.local.incarnation, incarnation, _CLOCK_MAX) + INCARNATION_JUMP_MAX
        if record.incarnation > highest:
            # Too high, unless the member itself confirms it.
            return MergeResult.INCARNATION_OUT_OF_RANGE
        if entry is None:
            if record.state is MemberState.LEFT and not is_authentic_leave(
                record, record.leave_digest
            ):
                return MergeResult.FORGED_LEAVE
            if not record.state.is_active:
                # An unknown node needs no tombstone.
                return MergeResult.STALE
            is_full = self._is_full or self._is_address_full(record.address)
            return MergeResult.TABLE_FULL if is_full else MergeResult.UNPROVEN
        is_same = record.instance == entry.record.instance
        if (
            is_same
            and record.state is MemberState.LEFT
            and not is_authentic_leave(record, entry.record.leave_digest)
        ):
            return MergeResult.FORGED_LEAVE
        if record.identity != entry.record.identity:
            return self._merge_other_process(entry, record)
        if record.precedence > entry.record.precedence:
            if entry.state is MemberState.DEAD and record.state.is_active:
                return MergeResult.UNPROVEN
            is_changed = self._apply(entry, GOSSIP_CAUSES[record.state], record, now)
        else:
            is_changed = self._confirm(entry, record)
        is_changed |= self._update_properties(entry, record)
        return MergeResult.APPLIED if is_changed else MergeResult.STALE

    def confirm_alive(self, entry: MemberEntry, incarnation: int, now: float) -> None:
        """Apply the incarnation that a member sent in its own ack; it needs no further proof."""
        if entry.record.incarnation < incarnation < NUMBER_MAX:
            update = msgspec.structs.replace(
                entry.record, state=MemberState.ALIVE, incarnation=incarnation, reported_by=""
            )
            self._apply(entry, StateChangeCause.REPLIED, update, now)

    def _merge_other_process(self, entry: MemberEntry, record: MemberRecord) -> MergeResult:
        if record.state is MemberState.LEFT and not is_authentic_leave(record, record.leave_digest):
            return MergeResult.FORGED_LEAVE
        # A process that is dead or left has no claim to the name of one that may be alive.
        if not record.state.is_active or not record.supersedes(entry.record):
            return MergeResult.STALE
        return MergeResult.NAME_CONFLICT if entry.state.is_active else MergeResult.UNPROVEN

    def admit(self, record: MemberRecord, now: float) -> MergeResult:
        """Add or update a node that replied to this node, unless a newer record is known."""
        entry = self.entries.get(record.name)
        if entry is not None and entry.record.identity == record.identity:
            if record.precedence <= entry.record.precedence:
                return self.merge(record, now)
            is_changed = self._apply(entry, StateChangeCause.REPLIED, record, now)
            is_changed |= self._update_properties(entry, record)
            return MergeResult.APPLIED if is_changed else MergeResult.STALE
        if entry is not None:
            if not record.supersedes(entry.record):
                return MergeResult.STALE
            self._apply(entry, StateChangeCause.REPLACED, record, now)
        return self.add(record, now)

    def add(self, record: MemberRecord, now: float) -> MergeResult:
        """Add an unknown node in the state of its record."""
        if record.state.is_active and self._is_address_full(record.address):
            return MergeResult.TABLE_FULL
        if len(self.entries) >= self._config.members_max and not self._evict_tombstone(record):
            return MergeResult.TABLE_FULL
        entry = self.entries[record.name] = MemberEntry(record, now)
        if record.state is MemberState.SUSPECT:
            entry.suspicion = self._new_suspicion(record, now)
        self._update_indexes(entry, None)
        self._gossip_queue.add(record)
        return MergeResult.APPLIED

    def suspect(self, name: str, incarnation: int, *, since: float) -> bool:
        """Suspect a member after a failed probe; return whether that is new."""
        entry = self.active.get(name)
        if entry is None or entry.record.incarnation != incarnation:
            return False
        suspect_record = msgspec.structs.replace(
            entry.record, state=MemberState.SUSPECT, reported_by=self.local.name
        )
        if entry.state is MemberState.ALIVE:
            return self._apply(entry, StateChangeCause.PROBE_FAILED, suspect_record, since)
        return self._confirm(entry, suspect_record)

    def expire_suspects(self, now: float) -> None:
        """Declare dead every suspected member whose suspicion has timed out."""
        for entry in list(self.suspects.values()):
            if entry.suspicion is not None and entry.suspicion.deadline <= now:
                dead_record = msgspec.structs.replace(entry.record, reported_by=self.local.name)
                self._apply(entry, StateChangeCause.TIMED_OUT, dead_record, now)

    def reap_tombstones(self, now: float) -> None:
        """Remove dead and left members whose tombstones have expired."""
        for entry in list(self.tombstones.values()):
            if entry.since + self._config.tombstone_ttl_s <= now:
                self._apply(entry, StateChangeCause.REAPED, entry.record, now)

    def set_local(self, local: MemberRecord) -> None:
        """Replace this node's own record."""
        self.local = local
        self._digest = None

    def deadline(self) -> float:
        """Return when `expire_suspects` has something to do."""
        deadlines = [
            entry.suspicion.deadline for entry in self.suspects.values() if entry.suspicion
        ]
        return min(deadlines, default=float("inf"))

    def extend_deadlines(self, seconds: float) -> None:
        """Extend suspicions by the time that this node stalled."""
        for suspicion in [entry.suspicion for entry in self.suspects.values() if entry.suspicion]:
            suspicion.extend_deadlines(seconds)

    # State changes.

    def _apply(
        self, entry: MemberEntry, cause: StateChangeCause, record: MemberRecord, now: float
    ) -> bool:
        """Change the state of a member as `TRANSITIONS` says; return whether anything changed."""
        before = entry.record
        if (before.state, cause) not in TRANSITIONS:
            return False
        after = TRANSITIONS[before.state, cause]
        if after is None:
            self._remove(entry)
            return True
        entry.record = msgspec.structs.replace(
            before,
            state=after,
            incarnation=max(before.incarnation, record.incarnation),
            reported_by=record.reported_by,
            leave_secret=record.leave_secret,
        )
        is_changed = self._apply_suspicion(entry, before, cause, now)
        if after is not before.state:
            entry.since = now
        self._update_indexes(entry, before)
        if is_changed:
            # A reported death is gossiped as such, although this node only suspects the member.
            self._gossip_queue.add(
                record if cause is StateChangeCause.GOSSIP_DEAD else entry.record
            )
        return is_changed

    def _apply_suspicion(
        self, entry: MemberEntry, before: MemberRecord, cause: StateChangeCause, now: float
    ) -> bool:
        """Start, shorten or end the suspicion; return whether to gossip the change."""
        if entry.state is not MemberState.SUSPECT:
            entry.suspicion = None
            return True
        is_new = entry.suspicion is None or entry.record.incarnation > before.incarnation
        if entry.suspicion is None or is_new:
            entry.suspicion = self._new_suspicion(entry.record, now)
        if cause is StateChangeCause.GOSSIP_DEAD:
            return entry.suspicion.use_min_timeout() or is_new
        return is_new

    def _new_suspicion(self, record: MemberRecord, now: float) -> Suspicion:
        return Suspicion(self._config, now, record.reported_by, self.size)

    def _confirm(self, entry: MemberEntry, record: MemberRecord) -> bool:
        """Confirm a suspicion; return whether this reporter is new."""
        if entry.suspicion is None or record.state is not MemberState.SUSPECT:
            return False
        if record.precedence != entry.record.precedence or not entry.suspicion.confirm(
            record.reported_by
        ):
            return False
        self._gossip_queue.add(
            msgspec.structs.replace(entry.record, reported_by=record.reported_by)
        )
        return True

    def _update_properties(self, entry: MemberEntry, record: MemberRecord) -> bool:
        before = entry.record
        is_updated = entry.update_properties(record)
        _set_index(self.missing_properties, entry, entry.state.is_active and entry.lacks_properties)
        if not is_updated:
            return False
        self._digest = None
        self._gossip_queue.add(entry.record)
        if entry.state.is_active:
            self._report(MembershipEventType.METADATA, entry.record, before)
        return True

    def _remove(self, entry: MemberEntry) -> None:
        """Remove a dead or replaced member."""
        before = entry.record
        entry.record = msgspec.structs.replace(before, state=max(MemberState.DEAD, before.state))
        self._update_indexes(entry, before)
        self._gossip_queue.drop(before.name)
        self.tombstones.pop(before.name, None)
        del self.entries[before.name]

    @property
    def _is_full(self) -> bool:
        """Whether the table is full, without a tombstone to evict."""
        return len(self.entries) >= self._config.members_max and not self.tombstones

    def _is_address_full(self, address: Address) -> bool:
        """Return whether the limit of names at the address is reached."""
        return len(self._names_at.get(address, ())) >= _NAMES_AT_ADDRESS_MAX

    def _evict_tombstone(self, record: MemberRecord) -> bool:
        """Remove the oldest tombstone for an active member; return False if that is impossible."""
        oldest = next(iter(self.tombstones.values()), None)
        if oldest is None or not record.state.is_active:
            return False
        self._remove(oldest)
        return True

    def _update_indexes(self, entry: MemberEntry, before: MemberRecord | None) -> None:
        """Update the indexes and queue the event of the change."""
        record = entry.record
        self._digest = None
        was_active = before is not None and before.state.is_active
        _set_index(self.suspects, entry, record.state is MemberState.SUSPECT)
        _set_index(self.active, entry, record.state.is_active)
        _set_index(self.tombstones, entry, not record.state.is_active)
        _set_index(
            self.missing_properties, entry, record.state.is_active and entry.lacks_properties
        )
        names = self._names_at.setdefault(record.address, {})
        if record.state.is_active:
            names[record.name] = None
        else:
            names.pop(record.name, None)
            if not names:
                del self._names_at[record.address]
        self.revision += was_active is not record.state.is_active
        if was_active and not record.state.is_active:
            self._report(MembershipEventType.REMOVED, record, before)
        elif record.state.is_active and not was_active:
            self._report(MembershipEventType.ADDED, record, None)
        elif was_active and before is not None and before.state is not record.state:
            self._report(MembershipEventType.REACHABILITY, record, before)

    def _report(
        self, kind: MembershipEventType, record: MemberRecord, before: MemberRecord | None
    ) -> None:
        previous = None if before is None else to_member(before)
        self.events.append(MembershipEvent(kind, to_member(record), previous))


def _set_index(index: dict[str, MemberEntry], entry: MemberEntry, is_included: bool) -> None:
    if is_included:
        index[entry.record.name] = entry
    else:
        index.pop(entry.record.name, None)
