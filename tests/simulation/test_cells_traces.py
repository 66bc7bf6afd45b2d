"""What becomes of messages among two cores and two satellites: real nodes, row by row.

The rows are traces of the system this follows. Where a row ends differently here, it says why. In
all rows satellites choose a core by another hash than the original, so it is the one that this
hash names, not the one of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from postroad.cells import CellAddress, CellDomain, CellNotFoundError, CellPath, NoRouteError, Route
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.routing.decision import REMOTE_ONLY_ORIGIN
from postroad.cells.routing.rendezvous import rendezvous_rank
from postroad.core.errors import MessagingError
from postroad.testing import SimCluster
from tests.simulation.cells.mesh import Mesh

CORES = ("C1", "C2")
SATELLITES = ("S1", "S2")
SEED = 1
ARRIVAL_S = 1.0


def core_for(name: str) -> str:
    """The core through which satellites send to an address."""
    return rendezvous_rank(name.encode(), CORES)[0]


def other_core(core: str) -> str:
    return next(core_name for core_name in CORES if core_name != core)


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    with SimCluster(SEED) as sim:
        mesh = Mesh(sim, CORES, SATELLITES)
        for address in ("pub@S1", "pub@C1", "T2@S1"):
            mesh.add(address)
        mesh.add("a1@S1", topics=("T", "K"))
        mesh.add("a2@S1", topics=("T",), queues=("K",))
        mesh.add("b1@S2", topics=("T", "T2", "U"))
        mesh.add("x1@C1", topics=("T",))
        mesh.add("y1@C2", topics=("T",))
        mesh.add("e@S2", queues=("Q",))
        for core in CORES:
            stale = Route.to_queue("R", CellAddress.of_domain("S2"))
            mesh.domains[core].change_routes(added=[stale])
        yield mesh


# How messages are sent.

Send = Callable[[CellDomain, str, CellAddress], Any]


async def tell(domain: CellDomain, path: str, sender: CellAddress) -> None:
    domain.send_nowait(path, b"hello", sender=sender)


async def publish(domain: CellDomain, path: str, sender: CellAddress) -> None:
    domain.publish(path, b"hello", sender=sender)


async def call(domain: CellDomain, path: str, sender: CellAddress) -> None:
    assert await domain.call(path, b"hello", sender=sender, wait=False) == b"hello"


async def send_outwards(domain: CellDomain, path: str, sender: CellAddress) -> None:
    """As to a namesake elsewhere: cells of this domain do not count."""
    envelope = Envelope(
        id=domain._dispatcher.new_id(),
        destination=CellPath.parse(path),
        source=CellPath.of(sender),
        payload=b"hello",
    )
    assert domain._dispatcher.dispatch(envelope, REMOTE_ONLY_ORIGIN) is None


class Row(NamedTuple):
    """A message, the ways it took to whom, and where it failed."""

    sender: str
    path: str
    send: Send
    ways: dict[str, str]
    """By receiver, everybody who sent the message on, as the receiver sees it."""
    failed_at: str | None = None
    """The domain whose error a caller gets."""
    lost: int = 0
    """Domains in which the message found nobody."""
    correction: str = ""
    """Why this row ends differently than in the original."""


def ways_of_t() -> dict[str, str]:
    """From S1: to its own subscribers at once, and through one core to all others."""
    core = core_for("T@local")
    far = f"pub@S1:*@S1:*@{core}"
    cells = {"C1": "x1@C1", "C2": "y1@C2"}
    return {
        "a1@S1": "pub@S1",
        "a2@S1": "pub@S1",
        cells[core]: "pub@S1:*@S1",
        cells[other_core(core)]: far,
        "b1@S2": far,
    }


def way_through_core(name: str) -> str:
    return f"pub@S1:*@S1:*@{core_for(name)}"


NO_SPURIOUS_ERROR = (
    "the core skips the publisher's domain: no spurious NoRouteError to the publisher"
)
OTHER_CORE_IS_ASKED = "the other core is asked, too, before the sender is told"


def row_of_nobody(path: str, name: str) -> Row:
    through = other_core(core_for(name))
    return Row("pub@S1", path, call, {}, through, lost=3, correction=OTHER_CORE_IS_ASKED)


ROWS = {
    "1 topic from a satellite": Row("pub@S1", "T", tell, ways_of_t(), correction=NO_SPURIOUS_ERROR),
    "2 topic from a core": Row(
        "pub@C1",
        "T",
        tell,
        {
            "x1@C1": "pub@C1",
            "y1@C2": "pub@C1:*@C1",
            "a1@S1": "pub@C1:*@C1",
            "a2@S1": "pub@C1:*@C1",
            "b1@S2": "pub@C1:*@C1",
        },
    ),
    "3 topic with one subscriber elsewhere": Row(
        "pub@S1", "U", tell, {"b1@S2": way_through_core("U@local")}
    ),
    "4a call to a topic with no subscriber": row_of_nobody("V", "V@local"),
    "4b publication without a subscriber": Row(
        "pub@S1",
        "V",
        publish,
        {},
        lost=1,
        correction="who publishes says so, and then it is no error if nobody is there",
    ),
    "5 queue": Row("pub@S1", "Q", call, {"e@S2": way_through_core("Q@local")}),
    "6 stale queue route": Row(
        "pub@S1", "R", call, {}, failed_at="S2", lost=3, correction=OTHER_CORE_IS_ASKED
    ),
    "7a has no cell": Row("pub@S1", "z@S2", call, {}, failed_at="S2", lost=1),
    "7b no such domain": row_of_nobody("z@Nowhere", "z@Nowhere"),
    "7c no such name": row_of_nobody("zz", "zz@local"),
    "8 path of two cells": Row(
        "pub@S1",
        "b1@S2:a1@S1",
        tell,
        {"a1@S1": f"{way_through_core('b1@S2')}:b1@S2:*@S2:*@{core_for('a1@S1')}"},
    ),
    "9a a cell comes before a topic": Row("pub@S1", "T2", tell, {"T2@S1": "pub@S1"}),
    "9b not if it must go outwards": Row(
        "pub@S1", "T2", send_outwards, {"b1@S2": way_through_core("T2@local")}
    ),
    "10 topic and queue of one name": Row(
        "pub@S1", "K", tell, {"a1@S1": "pub@S1", "a2@S1": "pub@S1"}
    ),
}


def send(mesh: Mesh, row: Row) -> MessagingError | None:
    """Send the message of a row, and let everything arrive that it causes."""
    sender = CellAddress.parse(row.sender)
    node, domain = mesh.sim.nodes[sender.domain], mesh.domains[sender.domain]
    try:
        mesh.sim.run(row.send(domain, row.path, sender), node)
    except MessagingError as error:
        return error
    finally:
        mesh.sim.run_for(ARRIVAL_S)
    return None


def ways(mesh: Mesh) -> dict[str, list[str]]:
    return {
        address: [str(message.path) for message in inbox.messages]
        for address, inbox in mesh.inboxes.items()
        if inbox.messages
    }


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_trace(mesh: Mesh, row: Row) -> None:
    error = send(mesh, row)
    assert ways(mesh) == {address: [way] for address, way in row.ways.items()}
    if row.failed_at is None:
        assert error is None
    else:
        assert isinstance(error, NoRouteError)
        assert error.detail.endswith((f"at {row.failed_at}", f"domain {row.failed_at}"))
    assert sum(domain.statistics().undelivered for domain in mesh.domains.values()) == row.lost
    assert not any(domain.statistics().replies_late for domain in mesh.domains.values())


def test_5_the_reply_goes_back_by_the_core_that_brought_the_request(mesh: Mesh) -> None:
    """A correction: the original looks for a way anew, and may find a core without one."""
    send(mesh, ROWS["5 queue"])
    through = core_for("Q@local")
    assert through != core_for("pub@S1")
    assert mesh.domains[through].statistics().forwarded == 2
    assert mesh.domains[other_core(through)].statistics().forwarded == 0


def test_5_the_consumer_is_told_the_queue(mesh: Mesh) -> None:
    send(mesh, ROWS["5 queue"])
    (message,) = mesh.inboxes["e@S2"].messages
    assert (message.route_name, str(message.sender)) == ("Q", "pub@S1")


def test_8_the_first_cell_of_a_path_sends_it_on_unread(mesh: Mesh) -> None:
    send(mesh, ROWS["8 path of two cells"])
    assert mesh.inboxes["b1@S2"].messages == []
    assert mesh.domains["S2"].statistics().delivered == 1


def test_10_nothing_leaves_a_satellite_that_has_the_queue(mesh: Mesh) -> None:
    send(mesh, ROWS["10 topic and queue of one name"])
    assert mesh.domains["S1"].statistics().forwarded == 0


def test_11_a_route_to_a_missing_cell_is_refused(mesh: Mesh) -> None:
    missing = Route.to_queue("Q", CellAddress("ghost", "S1"))
    with pytest.raises(CellNotFoundError, match="has no cell ghost@S1"):
        mesh.domains["S1"].change_routes(added=[missing])
