"""Offers get through: whatever is lost, doubled or overtaken, the last one counts."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from postroad.cells import Role, Route, RouteAdvertiserConfig
from postroad.cells.addresses import DomainInfo
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementUpdate,
    RouteAdvertisement,
    RoutingUpdate,
)
from postroad.cells.routing.advertiser import RouteAdvertiser
from postroad.cells.routing.route_learner import RouteLearner

CONFIG = RouteAdvertiserConfig(resend_first_s=1, resend_max_s=4, check_interval_s=10)
SENDER = DomainInfo("C2", Role.CORE, "east")
RECEIVER = DomainInfo("C1", Role.CORE)

names = st.sets(st.sampled_from("abc"))


class Change(NamedTuple):
    queues: set[str]
    topics: set[str]


class Restart(NamedTuple):
    """The sender stops and starts anew, with or without the receiver noticing."""

    higher: int
    is_noticed: bool


class Carry(NamedTuple):
    """A message that is under way arrives: in any order, and perhaps again later."""

    place: int
    stays: bool


class Lose(NamedTuple):
    place: int


class Wait(NamedTuple):
    seconds: int


places = st.integers(0, 9)
events = st.lists(
    st.one_of(
        st.builds(Change, names, names),
        st.builds(Carry, places, st.booleans()),
        st.builds(Carry, places, st.just(False)),
        st.builds(Lose, places),
        st.builds(Wait, st.integers(1, 12)),
        st.builds(Restart, st.integers(1, 3), st.booleans()),
    ),
    max_size=30,
)


class Link:
    """A sender, a receiver, and a tunnel that treats messages as it likes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.incarnation = 0
        self.queues: set[str] = set()
        self.topics: set[str] = set()
        self.learner = RouteLearner(RECEIVER)
        self.installed: set[Route] = set()
        self.to_receiver: list[RoutingUpdate] = []
        self.to_sender: list[AdvertisementAck] = []
        self.start(1)

    def start(self, higher: int) -> None:
        self.incarnation += higher
        self.advertiser = RouteAdvertiser(SENDER, incarnation=self.incarnation, config=CONFIG)
        self.advertisement()
        self.learner.peer_up(SENDER, self.now)
        self.advertiser.peer_up(RECEIVER.name, RECEIVER.role, self.now)
        self.collect()

    def advertisement(self) -> None:
        self.advertiser.advertise(RouteAdvertisement.of(self.queues, self.topics), self.now)
        self.collect()

    def collect(self) -> None:
        outgoing = self.advertiser.drain_outgoing()
        assert {name for name, _ in outgoing} <= {RECEIVER.name}
        self.to_receiver += [update for _, update in outgoing]
        changes = self.learner.drain_changes()
        assert self.installed.issuperset(changes.deleted)
        self.installed.difference_update(changes.deleted)
        assert self.installed.isdisjoint(changes.added)
        self.installed.update(changes.added)

    def happen(self, event: Change | Restart | Carry | Lose | Wait) -> None:
        if isinstance(event, Change):
            self.queues, self.topics = event
            self.advertisement()
        elif isinstance(event, Restart):
            self.restart(event)
        elif isinstance(event, Wait):
            self.wait(event.seconds)
        else:
            self.handle_message(event)

    def restart(self, event: Restart) -> None:
        if event.is_noticed:
            self.learner.peer_down(SENDER.name, self.now)
            self.collect()
            assert self.installed == set()
        self.start(event.higher)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.advertiser.tick(self.now)
        self.learner.tick(self.now)
        self.collect()

    def handle_message(self, event: Carry | Lose) -> None:
        under_way = len(self.to_receiver) + len(self.to_sender)
        if not under_way:
            return
        place = event.place % under_way
        keeps = isinstance(event, Carry) and event.stays
        if place < len(self.to_receiver):
            update = self.to_receiver[place] if keeps else self.to_receiver.pop(place)
            if isinstance(event, Carry):
                self.bring(update)
        else:
            place -= len(self.to_receiver)
            ack = self.to_sender[place] if keeps else self.to_sender.pop(place)
            if isinstance(event, Carry):
                self.answer(ack)

    def bring(self, update: RoutingUpdate) -> None:
        assert not isinstance(update, AdvertisementAck)
        ack = self.learner.receive(update, SENDER.name, self.now)
        assert ack is not None
        self.to_sender.append(ack)
        self.collect()

    def answer(self, ack: AdvertisementAck) -> None:
        self.advertiser.receive(ack, RECEIVER.name, self.now)
        self.collect()

    def calm_down(self) -> None:
        """From now on everything arrives, in its order."""
        for _ in range(10):
            for _ in range(50):
                if not self.to_receiver and not self.to_sender:
                    break
                self.carry_all()
            else:
                raise AssertionError("they never stop talking")
            self.wait(CONFIG.check_interval_s)

    def carry_all(self) -> None:
        updates, self.to_receiver = self.to_receiver, []
        for update in updates:
            self.bring(update)
        haves, self.to_sender = self.to_sender, []
        for ack in haves:
            self.answer(ack)

    def expected(self) -> set[Route]:
        zone, target = SENDER.zone, SENDER.address
        queues = {Route.to_queue(name, target, zone) for name in self.queues}
        return queues | {Route.to_topic(name, target, zone) for name in self.topics}


@given(events)
def test_the_last_offer_gets_through(events: list[Change | Restart | Carry | Lose | Wait]) -> None:
    link = Link()
    for event in events:
        link.happen(event)
    link.calm_down()
    assert link.installed == link.expected()
    assert link.advertiser.unacknowledged() == []
    assert link.learner.ack_for(SENDER.name).incarnation == link.incarnation


@given(events)
def test_once_the_last_snapshot_arrived_nothing_older_changes_it(
    events: list[Change | Restart | Carry | Lose | Wait],
) -> None:
    link = Link()
    for event in events:
        link.happen(event)
    link.calm_down()
    number = link.learner.ack_for(SENDER.name).number
    for older in range(number):
        link.bring(AdvertisementUpdate(link.incarnation, older, RouteAdvertisement.of(["old"])))
    link.bring(
        AdvertisementUpdate(link.incarnation - 1, number + 5, RouteAdvertisement.of(["old"]))
    )
    assert link.installed == link.expected()


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), min_size=1, max_size=8), st.data())
def test_the_order_of_arrival_does_not_matter(
    versions: list[tuple[int, int]], data: st.DataObject
) -> None:
    snapshots = [
        AdvertisementUpdate(
            incarnation, number, RouteAdvertisement.of([f"q{incarnation}-{number}"])
        )
        for incarnation, number in versions
    ]
    learner = RouteLearner(RECEIVER)
    learner.peer_up(SENDER, 0.0)
    for snapshot in data.draw(st.permutations(snapshots)):
        learner.receive(snapshot, SENDER.name, 0.0)
    newest = max(snapshots, key=lambda snapshot: (snapshot.incarnation, snapshot.number))
    assert learner.advertisements() == {SENDER.name: newest.advertisement}
