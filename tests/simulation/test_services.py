"""Scenario `services`: it passes with many seeds, and finds bugs that are planted."""

from collections.abc import Sequence
from typing import Any

import pytest

from postroad.cells import CellAddress, NoRouteError
from postroad.services.transporters import cells_outgoing
from postroad.services.transporters.cells_connection import Connection
from postroad.services.transporters.cells_incoming import Incoming, PacketCell
from postroad.services.transporters.cells_lanes import Lane, NodeLane
from postroad.services.transporters.cells_letters import encode_letter
from postroad.services.transporters.cells_outgoing import Outgoing
from postroad.services.transporters.cells_peers import Peers
from postroad.services.transporters.cells_session import CellsSession
from postroad.testing import CRASH_EXIT_CODE
from tests.simulation.planting import CORRECTNESS, LIVENESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("services", seeds)


@pytest.mark.parametrize("seed", [18, 58, 248])
def test_seed_that_found_something_passes(seed: int) -> None:
    """A letter lost while all were cleared; a node that left the own domain; two timers at once."""
    check_seeds("services", range(seed, seed + 1))


@BUGS.replace(NodeLane, "send", CORRECTNESS, 1)
def plant_letters_sent_twice(send: Any, self: NodeLane, *args: Any) -> None:
    send(self, *args)
    send(self, *args)


@BUGS.replace(cells_outgoing, "encode_letter", CORRECTNESS, 1)
def plant_packets_in_another_order(_: Any, packets: Sequence[tuple[str, bytes]]) -> bytes:
    return encode_letter(packets[::-1])


@BUGS.replace(Lane, "confirm", CORRECTNESS, 0)
def plant_letters_that_nobody_confirms(_: Any, self: Lane, sent: int) -> None:
    """Let it be under way for ever."""


@BUGS.replace(Peers, "miss", CORRECTNESS, 0)
def plant_nodes_that_nobody_misses(_: Any, self: Peers, lane: Lane, error: NoRouteError) -> None:
    """Tell nobody."""


@BUGS.replace(Peers, "_locate", CORRECTNESS, 79)
def plant_nodes_that_never_move(locate: Any, self: Peers, sender: CellAddress) -> Any:
    node_id = self._names.node_of(sender.cell)
    if node_id is not None and self.get(node_id).address is not None:
        return self.get(node_id)
    return locate(self, sender)


@BUGS.replace(Connection, "_look", LIVENESS, 13)
def plant_a_connection_that_stays_down(look: Any, self: Connection) -> None:
    if self.is_up or not self._was_up.is_set():
        look(self)


@BUGS.plant(CORRECTNESS, 0)
def plant_a_connection_that_seems_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "_has_way", lambda self: True)


@BUGS.replace(Incoming, "receive", CORRECTNESS, 1)
def plant_echoes(receive: Any, self: Incoming, message: Any) -> None:
    """Who sends to all gets a copy."""
    self._broadcast = ""
    receive(self, message)


@BUGS.replace(CellsSession, "_replace_consumer", CORRECTNESS, 3)
async def plant_listeners_that_stay(
    _: Any, self: CellsSession, consumer: PacketCell | None
) -> None:
    self._consumer = consumer


@BUGS.replace(CellsSession, "_let_go", CORRECTNESS, 0)
async def plant_packets_after_the_end(_: Any, self: CellsSession, cell: PacketCell) -> None:
    self._incoming.is_open = True


@BUGS.replace(Outgoing, "_retry", CRASH_EXIT_CODE, 10)
def plant_exception(retry: Any, self: Outgoing, lane: Lane) -> None:
    if len(lane.letters) > 1:
        raise IndexError("so many letters")
    retry(self, lane)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("services", monkeypatch)
