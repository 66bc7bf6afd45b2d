"""What a node does with the news it hears: believe, object, ask back, or refuse and count."""

from __future__ import annotations

import msgspec

from postroad.core import Address
from postroad.core.errors import MalformedPayload

from .naming import Naming
from .own import OwnRecord
from .packets import News, Pull
from .probing import Prober
from .records import CLAIM_MAX, Record, check_record
from .roster import Verdict
from .states import State
from .voice import Voice

# Properties that came without their text are asked for again after so long.
_PULL_PAUSE_S = 1.0
# Nodes told within the interval of probes; the others hear of it another time.
_INFORMED_MAX = 16


class Hearing:
    """Takes in one record after another."""

    def __init__(self, voice: Voice, own: OwnRecord, prober: Prober, naming: Naming) -> None:
        self._voice = voice
        self._roster = voice.roster
        self._own = own
        self._prober = prober
        self._naming = naming
        # Nodes that were told that they are thought dead, and when that may be done again.
        self._informed: dict[str, float] = {}
        # Members whose properties were asked for, and when that may be done again.
        self._pulls: dict[str, float] = {}

    def hear(self, record: Record, now: float) -> None:
        """Take in what somebody says of a node."""
        known = self._roster.entries.get(record.name)
        if known is not None and known.record == record:
            # Most news have been heard before.
            return
        try:
            check_record(record, properties_bytes_max=self._voice.config.properties_bytes_max)
        except MalformedPayload:
            self._voice.refuse("malformed record")
            return
        own = self._roster.own
        if record.name != own.name:
            self._hear_of_another(record, now)
        elif _is_beyond(record.incarnation, own.incarnation) or _is_beyond(
            record.version, own.version
        ):
            self._voice.refuse(Verdict.LEAPED.value)
        elif record.instance == own.instance:
            self._hear_of_self(record)
        else:
            self._hear_of_namesake(record, now)

    def _hear_of_another(self, record: Record, now: float) -> None:
        verdict = self._roster.merge(record, now)
        if verdict.is_refusal:
            self._voice.refuse(verdict.value)
        elif verdict is Verdict.CONTESTED:
            self._naming.contest(record, now)
        elif verdict is Verdict.NEWS:
            self._check_address(record, now)
        elif record.state.is_active:
            self._inform(record, now)

    def _inform(self, record: Record, now: float) -> None:
        """Tell a node that is said to live, but thought dead here, so that it can object."""
        entry = self._roster.entries[record.name]
        is_gone = entry.state is State.LEFT and entry.record.instance == record.instance
        if entry.state.is_active or is_gone or self._informed.get(record.name, 0.0) > now:
            return
        if len(self._informed) >= _INFORMED_MAX:
            self._informed = {name: due for name, due in self._informed.items() if due > now}
            if len(self._informed) >= _INFORMED_MAX:
                return
        self._informed[record.name] = now + self._voice.config.probe_interval_s
        is_same = entry.record.instance == record.instance
        address = entry.record.address if is_same else record.address
        self._voice.say(address, News(news=[entry.record.without_properties()]))

    def _hear_of_self(self, record: Record) -> None:
        """Object to whatever is said of this node that it did not say."""
        own = self._roster.own
        is_false = record.identity != own.identity and record.incarnation >= own.incarnation
        if record.state is State.LEFT:
            self._voice.refuse(Verdict.FORGED.value)
        if is_false or (record.rank > own.rank and record.state is not State.LEFT):
            self._voice.counters.refutations += 1
            self._voice.health.worsen()
            self._own.outrank(record)
        elif record.state is State.ALIVE:
            self._own.correct(record)
        elif record.state is not State.LEFT:
            # Outranked already, but whoever said it has not heard so.
            self._own.repeat()

    def _hear_of_namesake(self, record: Record, now: float) -> None:
        """Another process has this name, or had it: outrank it, and find out whether it lives."""
        own = self._roster.own
        is_newer = record.incarnation >= own.incarnation
        is_elsewhere = record.state.is_active and record.address != own.address
        if is_elsewhere and (is_newer or not self._voice.is_member):
            self._naming.look_into(record, now)
        if is_newer:
            self._own.outrank(record)

    def hear_of_caller(self, address: Address, instance: int, now: float) -> None:
        """A process calls from the address that says it has this name: ask there."""
        own = self._roster.own
        if instance != own.instance and address != own.address:
            caller = msgspec.structs.replace(
                own, instance=instance, host=address.host, port=address.port
            )
            self._naming.look_into(caller, now)

    def _check_address(self, record: Record, now: float) -> None:
        """Two names at one address cannot both be right: ask who is there."""
        if not record.state.is_active:
            return
        if record.address == self._roster.own.address:
            self._voice.refuse("claims this node's address")
        other = self._roster.first_at(record.address)
        if other is not None and other.record.name != record.name:
            self._voice.refuse("claims another member's address")
            self._prober.probe(other, now)

    # Properties that are too large for the packet that told of them.

    def deadline(self) -> float:
        """When `tick` has something to do."""
        lacking = self._roster.lacking
        return min((self._pulls.get(name, 0.0) for name in lacking), default=float("inf"))

    def tick(self, now: float) -> None:
        """Ask for what did not come, again and again."""
        lacking = self._roster.lacking
        if len(self._pulls) > len(lacking):
            self._pulls = {name: due for name, due in self._pulls.items() if name in lacking}
        for name, entry in lacking.items():
            if self._pulls.get(name, 0.0) <= now:
                self._pulls[name] = now + _PULL_PAUSE_S
                pull = Pull(version=entry.wanted, instance=entry.record.instance)
                self._voice.say(entry.record.address, pull, to=name, in_stream=True)


def _is_beyond(claim: int, own: int) -> bool:
    """Whether a number claimed of this node is higher than it could outrank."""
    return claim > max(CLAIM_MAX, own)
