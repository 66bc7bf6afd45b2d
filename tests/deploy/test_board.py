"""The board for Grafana and the configuration of Prometheus name what nodes really tell."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from postroad.admin.exposition import Exposition
from postroad.admin.metrics import Metrics
from postroad.admin.pipeline_metrics import add_job
from postroad.node import Node
from postroad.pipeline import JobProgress
from tests.support.admin.nodes import config_of, make_app
from tests.support.deadlines import eventually
from tests.support.source_tree import ROOT

DEPLOY = ROOT / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "postroad.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]


async def told_by_nodes(directory: Path) -> dict[str, set[str]]:
    """The names of all metrics, with their labels, of two nodes and a job."""
    async with (
        Node(config_of(directory, "alpha"), make_app()) as alpha,
        Node(config_of(directory, "beta", cluster={"seeds": [str(alpha.service.address)]})) as beta,
    ):
        # A peer that mail waits for has a bridge.
        await beta.queues.declare("orders")
        await eventually(lambda: alpha.agent.member("beta"), "alpha knows beta")
        await alpha.queues.send("orders", b"apples", to="beta")
        trips = alpha.agent.statistics
        await eventually(lambda: trips().round_trips_s, "beta was probed", 20.0)
        text = await Metrics(alpha).collect()
    job = Exposition()
    add_job(job, "totals", JobProgress("totals", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    return {
        sample.name: {*sample.labels}
        for family in text_string_to_metric_families(text + job.render())
        for sample in family.samples
    }


async def test_every_metric_of_the_board_exists(tmp_path: Path) -> None:
    told = await told_by_nodes(tmp_path)
    named = set(re.findall(r"postroad_\w+", " ".join(QUERIES)))
    assert len(named) > 30
    assert named <= told.keys()
    # Labels that are asked for, or shown, exist too; Prometheus adds the instance itself, and
    # calls a label `job` of ours `exported_job`.
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"])) - {"instance"}
            [*names] = re.findall(r"postroad_\w+", target["expr"])
            known = set().union(*(told[it] for it in names))
            if "job" in known:
                known.add("exported_job")
            assert labels <= known, target


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_prometheus_asks_every_node_of_the_composition() -> None:
    composition = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    nodes = {
        f"{name}:8222" for name, it in composition["services"].items() if it["image"] == "postroad"
    }
    [scraped] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert set(scraped["static_configs"][0]["targets"]) == nodes
    [token] = composition["services"]["prometheus"]["secrets"]
    assert composition["secrets"][token] == {"environment": "POSTROAD_ADMIN_READ_TOKEN"}
    assert scraped["authorization"]["credentials_file"] == f"/run/secrets/{token}"


def test_grafana_finds_prometheus_and_the_board() -> None:
    composition = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]
    provisioning = DEPLOY / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "postroad.yml").read_text())[
        "providers"
    ]
    mounts = dict(it.split(":")[:2] for it in composition["volumes"])
    assert mounts["./grafana"] == provider["options"]["path"]
    home = composition["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/postroad.json"
