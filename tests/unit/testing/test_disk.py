"""A node's disk: what is synced survives, what is not may be lost, later changes first."""

import asyncio
from random import Random

import pytest

from postroad.core.errors import UsageError
from postroad.testing import SimCluster, SimDisk, SimNode


def test_files() -> None:
    disk = SimDisk(Random(1))
    disk.write("b", b"2")
    disk.write("a", b"1")
    disk.write("b", b"3")
    assert (disk.names(), disk.read("b"), disk.read("c")) == (["a", "b"], b"3", None)
    disk.delete("b")
    disk.delete("c")
    assert disk.names() == ["a"]
    with pytest.raises(UsageError, match="bytes"):
        disk.write("a", "text")  # type: ignore[arg-type]  # What is tested.


def test_disk_crash_keeps_synced_and_first_unsynced_changes() -> None:
    survivors = set()
    for seed in range(50):
        disk = SimDisk(Random(seed))
        disk.write("synced", b"yes")
        disk.write("gone", b"yes")
        disk.delete("gone")
        disk.sync()
        for number in range(4):
            disk.write("log", bytes([number]))
        disk.delete("synced")
        dropped = disk.crash()
        log = disk.read("log")
        assert (disk.read("synced") is None) == (dropped == 0)
        assert log == (None if dropped == 5 else bytes([min(4 - dropped + 1, 4) - 1]))
        assert disk.read("gone") is None
        survivors.add(log)
        assert disk.crash() == 0
    assert survivors == {None, b"\0", b"\1", b"\2", b"\3"}


def test_disk_of_a_node_survives_its_process() -> None:
    contents: list[bytes | None] = []

    async def count(node: SimNode) -> None:
        contents.append(node.disk.read("starts"))
        node.disk.write("starts", str(node.starts).encode())
        node.disk.sync()

    with SimCluster(1) as sim:
        node = sim.add("one", count)
        for _ in range(3):
            node.start()
            sim.run_for(1.0)
        node.lose_power()
        node.start()
        sim.run_for(1.0)
    assert contents == [None, b"1", b"2", b"3"]


@pytest.mark.parametrize("end", ["kill", "lose_power"])
def test_node_crash_may_lose_unsynced_changes(end: str) -> None:
    def keeps(seed: int) -> bool:
        async def write(node: SimNode) -> None:
            node.disk.write("a", b"1")
            await asyncio.Event().wait()

        with SimCluster(seed) as sim:
            node = sim.add("one", write)
            node.start()
            sim.run_for(1.0)
            getattr(node, end)()
            return node.disk.read("a") is not None

    seen: set[bool] = set()
    for seed in range(20):
        seen.add(keeps(seed))
        if len(seen) == 2:
            return
    raise AssertionError(f"always {seen}")
