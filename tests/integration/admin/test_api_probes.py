"""What machines ask: liveness, readiness, and numbers that Prometheus can read."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.support.admin.nodes import Served, pack, served

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("alpha")) as found:
        yield found


async def samples_of(node: Served) -> dict[str, float]:
    """Every sample, by name and labels as the text has them."""
    reply = await node.ask("/metrics", token=None)
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        assert family.documentation
        assert family.type in ("gauge", "counter")
        assert family.name.startswith("postroad")
        for sample in family.samples:
            labels = ",".join(f"{name}={it}" for name, it in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}"
            assert key not in found
            found[key] = sample.value
    return found


async def test_alive(node: Served) -> None:
    reply = await node.ask("/livez", token=None)
    assert (reply.status, reply.body) == (200, b"alive\n")


async def test_ready_until_it_drains(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        reply = await node.ask("/readyz", token=None)
        assert (reply.status, reply.body) == (200, b"ready\n")
        await node.node.drain()
        reply = await node.ask("/readyz", token=None)
        assert (reply.status, reply.body) == (503, b"the node is draining\n")
        # It still tells its numbers.
        assert (await samples_of(node))["postroad_part_failed{part=queues}"] == 0


async def test_numbers_of_every_part(node: Served) -> None:
    await node.node.queues.declare('odd"name"\\')
    await node.node.queues.send('odd"name"\\', b"1", to="alpha")
    begun = await node.node.flows.start_flow(pack, "apples")
    assert await begun.result(10.0) == "packed apples"
    assert await node.node.broker.call("greeter.hello", {"name": "Ann"}) == "Hello Ann!"
    found = await samples_of(node)
    assert found["postroad_up{}"] == 1
    assert found['postroad_queue_depth{queue=odd"name"\\}'] == 1
    assert found["postroad_flows{status=done}"] == 1
    assert found["postroad_flows{status=failed}"] == 0
    assert found["postroad_cluster_members{}"] == 1
    assert found["postroad_services{}"] >= 1
    assert found["postroad_dead_letters{}"] == 0
    assert found["postroad_process_memory_bytes{}"] > 1_000_000
    assert found["postroad_process_cpu_seconds_total{}"] > 0
    assert not [name for name, value in found.items() if "part_failed" in name and value]
    [build] = [name for name in found if name.startswith("postroad_build_info")]
    assert "node=alpha" in build


async def test_requests_are_counted(node: Served) -> None:
    before = await samples_of(node)
    node.node.service.serve("echo", lambda message: message.payload)
    await node.node.service.request(node.node.service.address, "echo", b"1")
    after = await samples_of(node)
    name = "postroad_wire_local_requests_total{}"
    assert after[name] > before[name]


async def test_failing_part_hides_no_other(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(node.node.queues, "statistics", fail)
    found = await samples_of(node)
    assert found["postroad_part_failed{part=queues}"] == 1
    assert found["postroad_part_failed{part=flows}"] == 0
    assert found["postroad_cluster_members{}"] == 1
    assert not [name for name in found if name.startswith("postroad_queue")]


async def test_many_ask_at_once(node: Served) -> None:
    replies = await asyncio.gather(*(node.ask("/metrics") for _ in range(20)))
    assert {it.status for it in replies} == {200}
