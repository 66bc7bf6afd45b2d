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
_ASKED_MAX = 6
_BATCH_PAUSE_S = 0.1
# Questions remembered; the oldest is forgotten for the next.
_QUESTIONS_MAX = 64
# Pauses between two exchanges differ by this share, so that nodes do not fall into step.
_JITTER = 0.2
_FIRST_PAUSE_S = 0.5
# Strangers asked who they are within the interval of probes: anybody can pretend to be one.
_STRANGERS_MAX = 8


class _ContactPoint:
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

    def __init__(self, voice: MembershipContext) -> None:
        self._voice = voice
        self._config = voice.config
        self._roster = voice.roster
        self._contacts: dict[Address, _ContactPoint] = {}
        self._questions: dict[int, Address] = {}
        self._next_sync = 0.0
        self._next_batch = 0.0
        # The pause before the next exchange: short while this node is new and others may be too.
        self._sync_pause_s = min(self._config.probe_interval_s, self._config.sync_interval_s)
        # Contacts that are not members, as of a revision of the roster.
        self._unknown: list[Address] = []
        self._unknown_at = -1
        # Strangers that were asked who they are, and when that may be done again.
        self._met: dict[Address, float] = {}

    def start(self, now: float) -> None:
        """Start the clock."""
        self._next_sync = now + self._interval_s()

    def set_seeds(self, addresses: Iterable[Address], now: float) -> bool:
        """These are the places now; whether there are any but this node's own."""
        wanted = [it for it in addresses if it != self._roster.local.address]
        self._contacts = {it: self._contacts.get(it) or _ContactPoint(now) for it in sorted(wanted)}
        self._unknown_at = -1
        return bool(self._contacts)

    def query_unknown(self, address: Address, now: float) -> None:
        """A node nobody told of spoke up from there: ask it who it is."""
        if self._is_known(address, None):
            return
        self._met = {at: until for at, until in self._met.items() if until > now}
        if address not in self._met and len(self._met) < _STRANGERS_MAX:
            self._met[address] = now + self._config.probe_interval_s
            self._send_sync_request(address)

    def deadline(self) -> float:
        """When `tick` has something to do."""
        due = min((self._contacts[at].due for at in self._find_unknown()), default=float("inf"))
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
        due = [at for at in self._find_unknown() if self._contacts[at].due <= now]
        if due:
            self._next_batch = now + _BATCH_PAUSE_S
        self._voice.chance.shuffle(due)
        due.sort(key=lambda address: self._contacts[address].attempts)
        for address in due[:_ASKED_MAX]:
            contact = self._contacts[address]
            contact.attempts += 1
            contact.due = now + backoff(
                contact.attempts,
                initial_delay_s=_FIRST_PAUSE_S,
                max_delay_s=self._config.sync_interval_s,
                jitter=self._voice.chance.random(),
            )
            self._send_sync_request(address)

    def _sync_with_random_member(self) -> None:
        """Compare views with one member, and see whether one of the dead is back."""
        for entry in self._voice.sample_members(1):
            self._send_sync_request(entry.record.address)
        dead = [it for it in self._roster.tombstones.values() if it.state is MemberState.DEAD]
        for entry in self._voice.chance.sample(dead, min(1, len(dead))):
            self._send_sync_request(entry.record.address)

    def _send_sync_request(self, address: Address) -> None:
        own = self._roster.local
        number = self._voice.new_nonce()
        while len(self._questions) >= _QUESTIONS_MAX:
            del self._questions[next(iter(self._questions))]
        self._questions[number] = address
        first = (own,) if self._voice.is_member else ()
        request = SyncRequestPacket(
            nonce=number,
            digest=self._roster.digest(),
            records=self._voice.gossip_records(*first, in_stream=True),
        )
        self._voice.send(address, request, in_stream=True)

    def _find_unknown(self) -> list[Address]:
        if self._unknown_at != self._roster.revision:
            self._unknown_at = self._roster.revision
            contacts = self._contacts.items()
            self._unknown = [at for at, it in contacts if not self._is_known(at, it.name)]
        return self._unknown

    def _is_known(self, address: Address, name: str | None) -> bool:
        """Whether the node at the address is a member already."""
        if name is not None and name in self._roster.active:
            return True
        return bool(self._roster.names_at(address))

    def _interval_s(self) -> float:
        pause_s = self._sync_pause_s
        self._sync_pause_s = min(2 * pause_s, self._config.sync_interval_s)
        return pause_s * (1 + _JITTER * (2 * self._voice.chance.random() - 1))

    def ask_around(self, count: int) -> None:
        """Compare views with some members at once: something must be found out."""
        for entry in self._voice.sample_members(count, with_suspects=True):
            self._send_sync_request(entry.record.address)

    def is_contact(self, address: Address) -> bool:
        """Whether discovery names the address."""
        return address in self._contacts

    def asked_at(self, number: int) -> Address | None:
        """Where the question of that number was asked, if it may be answered yet."""
        return self._questions.get(number)

    def is_trusted(self, number: int) -> bool:
        """Whether a contact or a member was asked that, and nobody who only spoke up."""
        address = self._questions.get(number)
        return address is not None and (
            address in self._contacts or bool(self._roster.names_at(address))
        )

    # Requests and answers.

    def on_request(self, request: SyncRequestPacket) -> SyncReplyPacket:
        """Tell all, unless the other knows it."""
        own = self._roster.local
        agrees = request.digest == self._roster.digest()
        return SyncReplyPacket(
            nonce=request.nonce,
            agrees=agrees,
            name=own.name,
            instance=own.instance,
            is_member=self._voice.is_member,
            records=[] if agrees else self._full_state(),
        )

    def on_reply(self, sync: SyncReplyPacket) -> bool:
        """Another's view, all heard by now. Tells what it lacks.

        Returns whether this node knows enough to join: a member has answered, or nobody is left
        who could.
        """
        address = self._questions.pop(sync.nonce, None)
        if address is None:
            return False
        contact = self._contacts.get(address)
        if contact is not None:
            contact.has_answered = True
        if sync.instance == self._roster.local.instance:
            # This very node by another address. It is asked again, for others may be there later.
            return self._have_all_answered()
        if contact is not None:
            contact.name, contact.attempts = sync.name, 0
            self._unknown_at = -1
        if not sync.agrees and self._voice.is_member:
            told = {record.name: record for record in sync.records}
            newer = [it for it in self._all() if _is_newer(it, told.get(it.name))]
            if newer:
                news = GossipPacket(records=self._fit(newer))
                self._voice.send(address, news, in_stream=True)
        return sync.is_member or self._have_all_answered()

    def _have_all_answered(self) -> bool:
        return all(contact.has_answered for contact in self._contacts.values())

    def _all(self) -> list[MemberRecord]:
        own = [self._roster.local] if self._voice.is_member else []
        return own + self._roster.records()

    def _full_state(self) -> list[MemberRecord]:
        return self._fit(self._all())

    def _fit(self, records: list[MemberRecord]) -> list[MemberRecord]:
        """What a packet can carry of them; of a very large view another part each time."""
        room = self._config.stream_bytes_max
        fitting = fit_records(records, room, full_bytes_max=room)
        if len(fitting) < len(records):
            self._voice.chance.shuffle(records)
            fitting = fit_records(records, room, full_bytes_max=room)
        return fitting


def _is_newer(ours: MemberRecord, theirs: MemberRecord | None) -> bool:
    if theirs is None:
        return True
    if ours.instance != theirs.instance:
        return ours.supersedes(theirs)
    return ours.precedence > theirs.precedence or ours.version > theirs.version
