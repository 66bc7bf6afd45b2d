"""Scenario `services`: it passes with many seeds, and finds bugs that are planted."""

from collections.abc import Sequence
from typing import Any

import pytest

from postroad.cells import CellAddress, NoRoute
from postroad.services.transporters import cells_outgoing
from postroad.services.transporters.cells_connection import Connection
from postroad.services.transporters.cells_incoming import Incoming, PacketCell
from postroad.services.transporters.cells_lanes import Lane, NodeLane
from postroad.services.transporters.cells_letters import encode_letter
from postroad.services.transporters.cells_outgoing import Outgoing
from postroad.services.transporters.cells_peers import Peers
from postroad.services.transporters.cells_session import CellsSession
from postroad.testing import CRASH, CorrectnessFailure, LivenessFailure
from tests.simulation.planting import Plant, check_found, check_passed, runner_of

SEEDS = 60
# A planted bug must show within so many.
PLANTED_SEEDS = 40

run = runner_of("services")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_seed(seed: int) -> None:
    check_passed(run(seed))


@pytest.mark.parametrize("seed", [18, 58, 248])
def test_seeds_that_found_something(seed: int) -> None:
    """A letter lost while all were cleared; a node that left the own domain; two timers at once."""
    check_passed(run(seed))


# The simulation finds what it is there for.


def plant_letters_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    send = NodeLane.send

    def send_twice(self: NodeLane, *args: Any) -> None:
        send(self, *args)
        send(self, *args)

    monkeypatch.setattr(NodeLane, "send", send_twice)


def plant_packets_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def turn_round(packets: Sequence[tuple[str, bytes]]) -> bytes:
        return encode_letter(packets[::-1])

    monkeypatch.setattr(cells_outgoing, "encode_letter", turn_round)


def plant_letters_that_nobody_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Lane, sent: int) -> None:
        """Let it be under way for ever."""

    monkeypatch.setattr(Lane, "confirm", forget)


def plant_nodes_that_nobody_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(self: Peers, lane: Lane, error: NoRoute) -> None:
        """Tell nobody."""

    monkeypatch.setattr(Peers, "miss", ignore)


def plant_nodes_that_never_move(monkeypatch: pytest.MonkeyPatch) -> None:
    locate = Peers._locate

    def locate_once(self: Peers, sender: CellAddress) -> NodeLane | None:
        node_id = self._names.node_of(sender.cell)
        if node_id is not None and self.get(node_id).address is not None:
            return self.get(node_id)
        return locate(self, sender)

    monkeypatch.setattr(Peers, "_locate", locate_once)


def plant_a_connection_that_stays_down(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Connection._look

    def look_once(self: Connection) -> None:
        if self.is_up or not self._was_up.is_set():
            look(self)

    monkeypatch.setattr(Connection, "_look", look_once)


def plant_a_connection_that_seems_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "_has_way", lambda self: True)


def plant_echoes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends to all gets a copy."""
    receive = Incoming.receive

    def receive_own(self: Incoming, message: Any) -> None:
        self._broadcast = ""
        receive(self, message)

    monkeypatch.setattr(Incoming, "receive", receive_own)


def plant_listeners_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(self: CellsSession, consumer: PacketCell | None) -> None:
        self._consumer = consumer

    monkeypatch.setattr(CellsSession, "_replace_consumer", keep)


def plant_packets_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stay(self: CellsSession, cell: PacketCell) -> None:
        self._incoming.is_open = True

    monkeypatch.setattr(CellsSession, "_let_go", stay)


def plant_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    retry = Outgoing._retry

    def fragile(self: Outgoing, lane: Lane) -> None:
        if len(lane.letters) > 1:
            raise IndexError("so many letters")
        retry(self, lane)

    monkeypatch.setattr(Outgoing, "_retry", fragile)


@pytest.mark.parametrize(
    ("plant", "exit_code"),
    [
        (plant_letters_sent_twice, CorrectnessFailure.exit_code),
        (plant_packets_in_another_order, CorrectnessFailure.exit_code),
        (plant_letters_that_nobody_confirms, CorrectnessFailure.exit_code),
        (plant_nodes_that_nobody_misses, CorrectnessFailure.exit_code),
        (plant_nodes_that_never_move, CorrectnessFailure.exit_code),
        (plant_a_connection_that_stays_down, LivenessFailure.exit_code),
        (plant_a_connection_that_seems_up, CorrectnessFailure.exit_code),
        (plant_echoes, CorrectnessFailure.exit_code),
        (plant_listeners_that_stay, CorrectnessFailure.exit_code),
        (plant_packets_after_the_end, CorrectnessFailure.exit_code),
        (plant_exception, CRASH),
    ],
)
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, exit_code: int
) -> None:
    plant(monkeypatch)
    check_found(run, range(PLANTED_SEEDS), exit_code)
