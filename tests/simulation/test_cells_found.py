"""What scenario `cells` has found once, as small as it can be told."""

import asyncio

from postroad.cells import CellsConfig, RouteLearnerConfig
from postroad.core import Limits
from postroad.core.limits import KIB
from postroad.testing import SimCluster
from tests.simulation.cells.mesh import Mesh

SEED = 1
CONFIG = CellsConfig(route_learner=RouteLearnerConfig(default_delay_s=0.1))
# Little is buffered, so that much waits for its tunnel; who is silent is soon given up.
NARROW = Limits(write_buffer_bytes_max=2 * KIB, heartbeat_interval_s=1.0, heartbeat_timeout_s=3.0)
LARGE = b"x" * 20_000
MESSAGES = 40


def publish_many(mesh: Mesh, domain: str) -> None:
    async def publish() -> None:
        for _ in range(MESSAGES):
            mesh.domains[domain].publish("news", LARGE)

    mesh.sim.run(publish(), mesh.sim.nodes[domain])


def await_loss(mesh: Mesh, one: str, other: str) -> None:
    mesh.sim.run_until(
        lambda: other not in mesh.domains[one].links.by_domain,
        timeout=10.0,
        description=f"{one} has given {other} up",
    )
    mesh.sim.run_for(1.0)


def test_own_subscribers_get_no_second_copy_when_the_core_is_lost() -> None:
    """What waited for the core finds no other way; it must not be published anew."""
    with SimCluster(SEED) as sim:
        mesh = Mesh(sim, ("C1", "C2"), ("S1",), config=CONFIG, limits=NARROW)
        inbox = mesh.add("ear@S1", topics=("news",))
        sim.network.partition("S1", ["C1", "C2"])
        publish_many(mesh, "S1")
        await_loss(mesh, "S1", "C1")
        await_loss(mesh, "S1", "C2")
        assert len(inbox.messages) == MESSAGES


def test_other_subscribers_get_no_second_copy_when_one_is_lost() -> None:
    """The copies that waited for a satellite are lost with it, and nobody else gets them."""
    with SimCluster(SEED) as sim:
        mesh = Mesh(sim, ("C1",), ("S1", "S2", "S3"), config=CONFIG, limits=NARROW)
        near = mesh.add("ear@C1", topics=("news",))
        lost = mesh.add("ear@S2", topics=("news",))
        far = mesh.add("ear@S3", topics=("news",))
        sim.network.partition("C1", "S2")
        publish_many(mesh, "S1")
        await_loss(mesh, "C1", "S2")
        assert (len(near.messages), len(far.messages)) == (MESSAGES, MESSAGES)
        assert len(lost.messages) < MESSAGES


def test_call_waits_for_the_first_subscriber() -> None:
    """When nobody was there it is sent anew, to subscribers as well."""
    with SimCluster(SEED) as sim:
        mesh = Mesh(sim, ("C1",), ("S1",), config=CONFIG)

        async def call() -> bytes:
            answer: bytes = await mesh.domains["C1"].call("news", b"who?", timeout=10.0)
            return answer

        async def come_later() -> None:
            await asyncio.sleep(2.0)
            mesh.domains["S1"].add_function("ear", lambda message: b"me", subscribe=["news"])

        sim.spawn(come_later(), sim.nodes["S1"])
        assert sim.run(call(), sim.nodes["C1"]) == b"me"
