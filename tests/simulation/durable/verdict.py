"""The end of a run: everything arrived, once, and nothing is left anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from postroad.durable import DeadLetter, DeadLetterReason
from postroad.durable.store.backends.sqlite import SqliteStoreConnection
from postroad.durable.store.tables import queries as query
from postroad.testing import LivenessFailure, require
from tests.simulation.durable.clerks import Fate
from tests.simulation.durable.process import Machine
from tests.simulation.durable.slips import (
    CLOSED,
    NOTES,
    RELAY,
    Job,
    Parcel,
    Temper,
    Way,
    copy_of,
    decode_slip,
)
from tests.simulation.durable.world import World

# Clocks that jumped make some letters wait for minutes.
QUIET_S = 400.0
# From then on nothing moves any more.
STABLE_S = 5.0
_LOOK_INTERVAL_S = 0.5
# Tables that are empty when nothing is under way.
_PASSING = ("postroad_outbox", "postroad_inbox", "postroad_aside")


def await_quiet(world: World) -> float:
    """Let time pass until all mail has arrived; returns how long that took."""
    healed = world.sim.now
    while not _is_quiet(world):
        if world.sim.now > healed + QUIET_S:
            raise LivenessFailure(_describe(world))
        world.start_all()
        world.sim.run_for(_LOOK_INTERVAL_S)
    took_s = world.sim.now - healed
    world.sim.run_for(STABLE_S)
    require(_is_quiet(world), "there is mail again, and nobody posted any")
    return took_s


def _is_quiet(world: World) -> bool:
    return world.books.is_done and not any(map(_left, world.machines.values()))


def _left(machine: Machine) -> list[str]:
    if not machine.is_ready or machine.disk.is_in_transaction:
        return ["it is not ready"]
    return [
        f"{count} rows in {table}"
        for table in _PASSING
        if (count := _rows(machine, f"SELECT COUNT(*) FROM {table}")[0][0])
    ]


def _rows(machine: Machine, statement: str) -> list[tuple[Any, ...]]:
    return machine.disk.execute(statement).fetchall()


def _describe(world: World) -> str:
    lines = [f"mail is stuck, {QUIET_S:g} s after healing"]
    for machine in world.machines.values():
        lines.append(f"{machine.name}: {'; '.join(_left(machine)) or 'nothing'}")
        if machine.mail is not None and machine.mail.bridges.manager is not None:
            lines += [f"  {bridge}" for bridge in machine.mail.bridges.manager.status()]
    undone = [job.name for job in world.books.jobs.values() if world.books.is_wanted(job)]
    lines.append(f"jobs not done: {', '.join(undone) or 'none'}")
    return "\n".join(lines)


class Findings:
    def __init__(self, world: World) -> None:
        self._world = world
        # How often each message was handled, by the rows that were committed with that.
        self.rows: Counter[str] = Counter()
        self.dead: dict[str, list[DeadLetter]] = {}
        # Where a message is among the rows of its node.
        self.places: dict[str, int] = {}
        self.journal: set[str] = set()
        for machine in world.machines.values():
            self._read(machine)

    def _read(self, machine: Machine) -> None:
        for place, token in _rows(machine, "SELECT sequence, token FROM handled"):
            self.rows[token] += 1
            self.places[token] = place
        self.journal.update(name for (name,) in _rows(machine, "SELECT job FROM journal"))
        database = SqliteStoreConnection(machine.disk.connection, "")
        for letter in query.list_dead_letters(database, None, 0, 1_000_000):
            token = decode_slip(letter.message.body).token
            self.dead.setdefault(token, []).append(letter)

    def ends(self, parcel: Parcel) -> int:
        """How often a message came to an end: was handled, or died."""
        token = parcel.token
        died = len(self.dead.get(token, ()))
        if parcel.queue == RELAY:
            return died + self._ends_of(copy_of(parcel.slip).token)
        if parcel.queue == NOTES:
            # Nothing but a row can tell one from many.
            return died or min(1, self._world.books.notes[token])
        return died + self.rows[token]

    def _ends_of(self, token: str) -> int:
        return self.rows[token] + len(self.dead.get(token, ()))

    # What must hold.

    def check(self) -> None:
        for job in self._world.books.jobs.values():
            self._check_job(job)
            for parcel in job.parcels:
                self._check_copy(parcel)
                self._check_death(parcel)
        self._check_strangers()
        self._check_order()

    def _check_job(self, job: Job) -> None:
        """All of its messages came to one end, or none was ever posted."""
        fate = self._world.books.fates[job.name]
        ends = {parcel.token: self.ends(parcel) for parcel in job.parcels}
        expected = {Fate.CONFIRMED: (1,), Fate.REFUSED: (0,)}.get(fate, (0, 1))
        require(
            set(ends.values()) in [{count} for count in expected],
            f"job {job.name} is {fate.value}, and its messages came to these ends: {ends}",
        )
        if job.way is Way.TRANSACTION:
            was_done = job.name in self.journal
            require(
                was_done == (1 in ends.values()),
                f"job {job.name} was {'' if was_done else 'not '}written down, but: {ends}",
            )

    def _check_copy(self, parcel: Parcel) -> None:
        if parcel.slip.copy_to is not None and parcel.queue != RELAY:
            handled, copies = self.rows[parcel.token], self._ends_of(copy_of(parcel.slip).token)
            require(
                handled == copies, f"{parcel.token} was handled {handled} times, copied {copies}"
            )

    def _check_death(self, parcel: Parcel) -> None:
        for letter in self.dead.get(parcel.token, ()):
            require(
                letter.reason in _reasons(parcel),
                f"{parcel.token} died because of {letter.reason}: {letter.detail}",
            )
        if parcel.queue == CLOSED or parcel.slip.temper is not Temper.FINE:
            require(not self.rows[parcel.token], f"{parcel.token} was handled and must not be")

    def _check_strangers(self) -> None:
        parcels = [parcel for job in self._world.books.jobs.values() for parcel in job.parcels]
        tokens = {parcel.token for parcel in parcels} | {
            copy_of(parcel.slip).token for parcel in parcels
        }
        for token in [*self.rows, *self.dead]:
            require(token in tokens, f"nobody posted {token}")

    def _check_order(self) -> None:
        for stream in _streams(self._world):
            self._check_sequence([parcel.token for parcel in stream])
            copies: dict[str, list[str]] = {}
            for slip in (parcel.slip for parcel in stream):
                if slip.copy_to is not None:
                    copies.setdefault(slip.copy_to, []).append(copy_of(slip).token)
            for tokens in copies.values():
                self._check_sequence(tokens)

    def _check_sequence(self, tokens: list[str]) -> None:
        """Those of them that were handled by the same node were handled in this order."""
        handled = [token for token in tokens if token in self.places]
        places = [self.places[token] for token in handled]
        require(
            places == sorted(places), f"{', '.join(handled)} were handled in the order {places}"
        )


def _reasons(parcel: Parcel) -> set[str]:
    reasons: set[str] = set()
    if parcel.queue == CLOSED:
        reasons.add(DeadLetterReason.UNKNOWN_QUEUE)
    if parcel.slip.temper is Temper.REJECTED:
        reasons.add(DeadLetterReason.REJECTED)
    if parcel.slip.temper is Temper.HOPELESS:
        reasons.add(DeadLetterReason.FAILED)
    if parcel.ttl is not None:
        reasons.add(DeadLetterReason.EXPIRED)
    return reasons


def _streams(world: World) -> Iterator[list[Parcel]]:
    """Messages whose order counts: by one clerk to one queue, of one key, equally urgent.

    What may have expired and been tried again comes when it comes.
    """
    for clerks in world.plan.clerks.values():
        for jobs in clerks:
            streams: dict[tuple[str, str, str, int], list[Parcel]] = {}
            for parcel in (parcel for job in jobs for parcel in job.parcels):
                if parcel.key is not None and parcel.delay is None and parcel.ttl is None:
                    where = (parcel.peer, parcel.queue, parcel.key, parcel.priority)
                    streams.setdefault(where, []).append(parcel)
            yield from streams.values()


def check_machines(world: World) -> None:
    """Numbers agree: between two stores, and between a store and what its process says."""
    for machine in world.machines.values():
        _check_statistics(world, machine)
        for sender in world.machines.values():
            _check_watermark(sender, machine)


def _check_statistics(world: World, machine: Machine) -> None:
    mail = machine.mail
    assert mail is not None
    reported = world.sim.run(mail.statistics(), machine.node)
    for name, queue in reported.queues.items():
        require(queue.depth == queue.in_flight == 0, f"{machine.name} has {name}: {queue}")
    for name, peer in reported.peers.items():
        require(peer.depth == 0, f"{machine.name} has mail for {name}: {peer}")
        phase = "idle" if peer.bridge is None else peer.bridge.state
        require(phase == "idle", f"{machine.name} has a bridge in trouble: {peer.bridge}")
    (dead,) = _rows(machine, "SELECT COUNT(*) FROM postroad_dead")[0]
    require(
        reported.dead_letters == dead,
        f"{machine.name} says {reported.dead_letters} are dead, and has {dead}",
    )
    require(
        not mail._receiver._stored_bytes,
        f"{machine.name} thinks it holds {mail._receiver._stored_bytes}",
    )
    for consumption in mail.dispatchers:
        require(consumption.uncommitted == 0, f"{consumption.queue} waits for commits")


def _check_watermark(sender: Machine, receiver: Machine) -> None:
    posted = _rows(
        sender,
        "SELECT settled, hex(settled_chain) FROM postroad_peers"
        f" WHERE name = '{receiver.name}' AND settled > 0",
    )
    accepted = _rows(
        receiver,
        f"SELECT watermark, hex(chain) FROM postroad_streams WHERE sender = '{sender.name}'",
    )
    require(
        posted == accepted,
        f"{sender.name} has posted {posted} to {receiver.name}, which has accepted {accepted}",
    )
