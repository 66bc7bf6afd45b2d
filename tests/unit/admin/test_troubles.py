"""What is wrong with a node, and how bad it is."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroad.admin.troubles import _of_disk, _of_flows, _of_mail, find_troubles, summarize
from postroad.admin.vitals import vitals_of
from postroad.core.errors import StoreUnavailableError
from postroad.durable import BridgeStatus, DurableQueuesStatistics, PeerStatistics, QueueStatistics
from postroad.flows import FlowStatus
from postroad.node import App, Layer, Node, NodeConfig
from postroad.node.settings import NodeSettings
from tests.support.cases import each


def mail(
    queues: dict[str, QueueStatistics] | None = None,
    peers: dict[str, PeerStatistics] | None = None,
    dead: int = 0,
) -> DurableQueuesStatistics:
    return DurableQueuesStatistics(
        queues=queues or {},
        peers=peers or {},
        dead_letters=dead,
        commits=0,
        sent=0,
        unclaimed_replies=0,
        sent_per_s=0,
        handled_per_s=0,
        failed_per_s=0,
    )


def queue(**facts: Any) -> QueueStatistics:
    known: dict[str, Any] = {"depth": 0, "in_flight": 0, "oldest_age_s": None, "is_paused": False}
    known |= {"has_consumer": True, "handled": 0, "failed": 0}
    return QueueStatistics(**known | facts)


def peer(trouble: str | None = None, **facts: Any) -> PeerStatistics:
    bridge = BridgeStatus("beta", "127.0.0.1:1", "backoff", 0, trouble)
    known: dict[str, Any] = {"depth": 0, "oldest_age_s": None, "sent": 9, "epoch": 1}
    known |= {"is_paused": False, "bridge": bridge}
    return PeerStatistics(**known | facts)


@each(
    (mail({"q": queue(depth=5, oldest_age_s=1_000.0)}, {"beta": peer(depth=3)}), []),
    (mail(dead=1), ["1 dead letter"]),
    (mail(dead=7), ["7 dead letters"]),
    (mail({"q": queue(is_paused=True)}), ["queue q is paused"]),
    (mail({"q": queue(depth=1, has_consumer=False, oldest_age_s=5.0)}), []),
    (
        mail({"q": queue(depth=1, has_consumer=False, oldest_age_s=60.0)}),
        ["nobody consumes queue q"],
    ),
    (mail(peers={"beta": peer("refused")}), []),
    (mail(peers={"beta": peer("refused", depth=1)}), ["mail for beta does not get through"]),
    (mail(peers={"beta": peer(is_paused=True)}), ["the bridge to beta is paused"]),
    (mail(peers={"beta": peer(depth=1, bridge=None, oldest_age_s=5.0)}), []),
    (
        mail(peers={"beta": peer(depth=1, bridge=None, oldest_age_s=60.0)}),
        ["mail waits for beta, which is away"],
    ),
)
def test_troubles_with_mail(found: DurableQueuesStatistics, titles: list[str]) -> None:
    troubles = [*_of_mail(found)]
    assert [it.title for it in troubles] == titles
    assert all(it.command.startswith("postroad ") for it in troubles)
    assert {it.severity for it in troubles} <= {"warning"}


def test_trouble_tells_what_to_do() -> None:
    (trouble,) = _of_mail(mail(peers={"beta": peer("refused", depth=2)}))
    assert trouble.detail == "2 messages wait: refused"
    assert (trouble.noun, trouble.id) == ("bridge", "beta")
    (trouble,) = _of_mail(mail(queues={"$(reboot)": queue(is_paused=True, depth=1)}))
    assert trouble.command == "postroad queue resume '$(reboot)'"
    assert trouble.detail == "1 message waits"
    assert [
        *_of_flows({FlowStatus.COMPLETED: 5, FlowStatus.RUNNING: 2, FlowStatus.FAILED: 1})
    ] == []
    troubles = [*_of_flows({FlowStatus.PARKED: 1, FlowStatus.RETRYING: 3, FlowStatus.HELD: 2})]
    assert [it.title for it in troubles] == [
        "1 flow is parked",
        "2 flows are held",
        "3 flows are retrying",
    ]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


async def test_full_disk_and_stopped_node_are_troubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 2**40))
    assert [*_of_disk(node)] == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 3 * 2**20))
    (trouble,) = _of_disk(node)
    assert (trouble.severity, trouble.title) == ("failing", "3 MiB of disk are left")
    monkeypatch.undo()
    (trouble,) = await find_troubles(make_node(tmp_path))
    assert (trouble.severity, trouble.title) == ("failing", "the node is new")


def make_node(directory: Path, *layers: Layer) -> Node:
    settings = NodeSettings(name="alpha", data=str(directory), layers=layers)
    return Node(NodeConfig(node=settings), App())


async def test_store_that_cannot_be_read_fails_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_node(tmp_path, Layer.CLUSTER, Layer.QUEUES, Layer.FLOWS) as node:
        assert await find_troubles(node) == []

        async def read(*args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailableError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(node.queues.store, "read", read)
            vitals_of(node).forget_mail()
            vitals_of(node).flows.forget()
            troubles = await find_troubles(node)
        assert {(it.severity, it.detail) for it in troubles} == {("failing", "the disk is gone")}
        checks = {it.name: it.status for it in summarize(node, troubles)}
        assert checks == {
            "node": "ok",
            "cluster": "ok",
            "queues": "failing",
            "flows": "failing",
            "disk": "ok",
            "pipeline": "ok",
        }
        assert await find_troubles(node) == []
