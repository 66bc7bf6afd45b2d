"""One name, one live process: what happens when a second one turns up.

Another member's name: the process that is known is asked. If it answers, the newcomer is not
believed; if the newcomer answers in its place, or nobody does in time, the newcomer takes over.

This node's own name: the other process is asked. If it answers, both live. A member goes before one
that is still joining; else the one that began earlier keeps the name. A node yields only to an
answer to its own question, so a forged packet cannot make it.
"""

from __future__ import annotations

from typing import NamedTuple

from postroad.core import Address

from .packets import Ack, Ping
from .records import Record
from .voice import Voice

# Questions under way at one time; what is dropped will be heard of again.
_OPEN_MAX = 64


class _Question(NamedTuple):
    """A process that claims a name, and until when whoever was asked may answer."""

    claimant: Record
    until: float


class Ruling(NamedTuple):
    """How a question about this node's own name was answered."""

    rival: Address
    yields: bool
    """Whether this node must give up its name."""


class Naming:
    """Questions about names under way, by the number of their ping."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._roster = voice.roster
        # About the names of others, and about this node's own.
        self._contests: dict[int, _Question] = {}
        self._rivals: dict[int, _Question] = {}

    @property
    def has_rivals(self) -> bool:
        """Whether somebody may have this node's own name."""
        return bool(self._rivals)

    def deadline(self) -> float:
        """When `tick` has something to do."""
        questions = (*self._contests.values(), *self._rivals.values())
        return min((it.until for it in questions), default=float("inf"))

    def tick(self, now: float) -> None:
        """Nobody answered: a challenger takes over, a rival does not exist."""
        for claimant in _take_due(self._contests, now):
            self._roster.replace(claimant, now)
        _take_due(self._rivals, now)

    def postpone(self, seconds: float) -> None:
        """This node stood still meanwhile."""
        for questions in (self._contests, self._rivals):
            for number, question in questions.items():
                questions[number] = question._replace(until=question.until + seconds)

    # The name of another member.

    def contest(self, challenger: Record, now: float) -> None:
        """Ask the known process of that name whether it lives."""
        for number, contest in self._contests.items():
            if contest.claimant.name == challenger.name:
                if challenger.succeeds(contest.claimant):
                    self._contests[number] = contest._replace(claimant=challenger)
                return
        if len(self._contests) >= _OPEN_MAX:
            return
        self._voice.counters.names_contested += 1
        # Others look into it for themselves.
        self._voice.rumours.add(challenger)
        holder = self._roster.active[challenger.name].record
        self._ask(self._contests, challenger, now, holder, about=challenger)

    def _judge(self, challenger: Record, ack: Ack, now: float) -> None:
        """Believe the challenger unless the holder answered, or somebody nobody told of."""
        holder = self._roster.entries.get(challenger.name)
        if ack.name == challenger.name:
            if holder is not None and _is_from(ack, holder.record):
                return
            if not _is_from(ack, challenger):
                return
        self._roster.replace(challenger, now)

    # This node's own name.

    def look_into(self, rival: Record, now: float) -> None:
        """Ask a process that is said to have this node's name whether it lives."""
        asked = [it.claimant.address for it in self._rivals.values()]
        if rival.address not in asked and len(asked) < _OPEN_MAX:
            about = self._roster.own if self._voice.is_member else None
            self._ask(self._rivals, rival, now, rival, about=about)

    def on_ack(self, ack: Ack, now: float) -> Ruling | None:
        """An answer, perhaps to one of these questions; a ruling if the own name is concerned."""
        contest = self._contests.pop(ack.number, None)
        if contest is not None:
            self._judge(contest.claimant, ack, now)
        rival = self._rivals.pop(ack.number, None)
        own = self._roster.own
        if rival is None or ack.name != own.name or ack.instance == own.instance:
            return None
        return self._rule(rival.claimant.address, ack.instance, is_member=ack.is_member)

    def on_same_name(self, address: Address, instance: int, *, is_member: bool) -> Ruling | None:
        """A process with this node's name answered at an address this node called."""
        for number, rival in list(self._rivals.items()):
            if rival.claimant.address == address:
                del self._rivals[number]
        if instance == self._roster.own.instance:
            return None
        return self._rule(address, instance, is_member=is_member)

    def _rule(self, address: Address, instance: int, *, is_member: bool) -> Ruling:
        self._voice.counters.names_contested += 1
        if is_member is not self._voice.is_member:
            return Ruling(address, yields=is_member)
        return Ruling(address, yields=instance < self._roster.own.instance)

    # Both.

    def _ask(
        self,
        questions: dict[int, _Question],
        claimant: Record,
        now: float,
        whom: Record,
        *,
        about: Record | None,
    ) -> None:
        """Ask by both ways: one may be blocked, and the answer matters."""
        voice, own = self._voice, self._roster.own
        number = voice.number()
        timeout_s = voice.config.probe_timeout_s * voice.health.patience
        questions[number] = _Question(claimant, now + timeout_s)
        first = () if about is None else (about,)
        for in_stream in (False, True):
            ping = Ping(
                number=number,
                name=own.name,
                instance=own.instance,
                joins=not voice.is_member,
                news=voice.news(*first, in_stream=in_stream),
            )
            voice.say(whom.address, ping, to=whom.name, in_stream=in_stream)


def _is_from(ack: Ack, record: Record) -> bool:
    return (ack.instance, ack.farewell) == (record.instance, record.farewell)


def _take_due(questions: dict[int, _Question], now: float) -> list[Record]:
    due = [number for number, question in questions.items() if question.until <= now]
    return [questions.pop(number).claimant for number in due]
