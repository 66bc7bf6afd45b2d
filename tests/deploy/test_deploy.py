"""What is in deploy/, checked by the tools it is for."""

import base64
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from postroad import __version__
from postroad.core.cluster_secret import check_secrets
from postroad.node.reading import load_config
from tests.support.source_tree import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "postroad"
STATEFULSET = CHART / "templates" / "statefulset.yaml"

# Every branch of the templates is taken by one of these.
VARIANTS: dict[str, list[str]] = {
    "default": [],
    "no-volume": ["persistence.enabled=false", "podDisruptionBudget.enabled=false"],
    "tls": [
        "tls.existingSecret=certs",
        "admin.existingSecret=tokens",
        "secret.existingSecret=shared",
    ],
    "program": [
        "app.configMap=shop",
        "app.path=/app/shop.py",
        "config.queues.tuning.handler_timeout_s=60",
    ],
    "postgres": ["store.existingSecret=database", "persistence.storageClass=fast"],
    "store": [
        "store.url=postgresql://db/mail",
        "store.parameters=sslmode=require",
        "imagePullSecrets[0].name=pull",
    ],
    "operator": ["serviceMonitor.enabled=true", "nodeSelector.disk=ssd", "podAnnotations.a=b"],
    "closed": ["admin.remote=change", "networkPolicy.nodesFrom[0].ipBlock.cidr=10.0.0.0/8"],
    "unfenced": ["networkPolicy.enabled=false"],
    "placed": [
        "priorityClassName=high",
        "topologySpreadConstraints[0].maxSkew=1",
        "topologySpreadConstraints[0].topologyKey=zone",
        "topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
        "extraVolumes[0].name=more",
        "extraVolumeMounts[0].name=more",
        "extraVolumeMounts[0].mountPath=/more",
    ],
}


def tool(name: str) -> str:
    """A program of the test extra."""
    path = Path(sys.executable).with_name(name)
    found = str(path) if path.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def render(*settings: str) -> str:
    flags = [part for it in settings for part in ("--set", it)]
    return run(tool("helm"), "template", "shop", str(CHART), *flags)


def resources(text: str) -> list[dict[str, Any]]:
    return [it for it in yaml.safe_load_all(text) if it]


def test_the_image_is_well_made() -> None:
    run(tool("hadolint"), str(DEPLOY / "Dockerfile"))


def extras_of_the_image() -> set[str]:
    (named,) = re.findall(r"^ARG EXTRAS=(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.M)
    return set(named.split(","))


def test_the_image_has_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras_of_the_image() <= set(project["optional-dependencies"])


PYTHON_OF_THE_IMAGE = {"python_version": "3.13", "python_full_version": "3.13.0"}


def applies(needed: Requirement, extras: set[str]) -> bool:
    environments = [{**PYTHON_OF_THE_IMAGE, "extra": it} for it in extras or {""}]
    return needed.marker is None or any(map(needed.marker.evaluate, environments))


class Needed(NamedTuple):
    by: str
    requirement: Requirement


def requirements_of_the_image() -> dict[str, set[Needed]]:
    """What it needs, by name of the package: also what those packages need."""
    all_needed: dict[str, set[Needed]] = {}
    unread = [("postroad", extras_of_the_image())]
    while unread:
        name, extras = unread.pop()
        for requirement in map(Requirement, distribution(name).requires or []):
            needed = Needed(canonicalize_name(name), requirement)
            known = all_needed.setdefault(canonicalize_name(requirement.name), set())
            if applies(requirement, extras) and needed not in known:
                known.add(needed)
                unread.append((requirement.name, requirement.extras))
    return {name: needed for name, needed in all_needed.items() if needed}


def test_versions_of_the_image_are_complete_and_fit_together() -> None:
    lines = (DEPLOY / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    needed = requirements_of_the_image()
    assert sorted(pinned) == sorted(needed)
    wrong = [
        (by, str(requirement))
        for name in needed
        for by, requirement in needed[name]
        # What another version than the pinned one needs says nothing of the image.
        if by not in pinned or distribution(by).version == pinned[by]
        if pinned[name] not in requirement.specifier
    ]
    assert wrong == []


def test_the_image_gets_what_the_build_needs() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.M)
    for name in " ".join(copied).split():
        assert f"!{name}" in ignored, f"{name} is copied, and ignored"
        assert (ROOT / name).exists()


def test_the_chart_is_well_made() -> None:
    run(tool("helm"), "lint", "--strict", str(CHART))


def test_the_chart_is_of_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_chart_makes_valid_resources(variant: str, tmp_path: Path) -> None:
    known = [it for it in resources(render(*VARIANTS[variant])) if "coreos" not in it["apiVersion"]]
    path = tmp_path / "resources.yaml"
    path.write_text(yaml.safe_dump_all(known))
    told = run(tool("kubernetes-validate"), "--strict", str(path))
    assert len(known) >= 4, told


@pytest.mark.parametrize("variant", VARIANTS)
def test_nodes_of_the_chart_understand_their_configuration(variant: str, tmp_path: Path) -> None:
    found = {it["kind"]: it for it in resources(render(*VARIANTS[variant]))}
    (node,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    environ = {"POD_IP": "10.0.0.7", "POD_INDEX": "2", "STORE_URL": "postgresql://db/mail"}
    for it in node["env"]:
        value = it.get("value", environ.get(it["name"], "a-value-that-fits"))
        # As Kubernetes does, with what stands above.
        environ[it["name"]] = re.sub(r"\$\((\w+)\)", lambda named: environ[named[1]], value)
    file = tmp_path / "postroad.toml"
    file.write_text(found["ConfigMap"]["data"]["postroad.toml"])
    config = load_config(file, environ=environ).config
    assert config.node.advertise == "10.0.0.7:26502"
    assert config.node.cluster == "shop"
    assert (config.tls is not None) == (variant == "tls")
    assert ("NetworkPolicy" in found) == (variant != "unfenced")
    assert config.is_closed
    assert config.admin_remote == ("change" if variant == "closed" else "read")
    stores = {
        "store": "postgresql://db/mail?schema=shop_postroad_2&sslmode=require",
        "postgres": "postgresql://db/mail?schema=shop_postroad_2",
    }
    assert config.queues.store == stores.get(variant)
    if variant == "program":
        assert (config.node.app, config.queues.tuning.handler_timeout_s) == ("/app/shop.py", 60)


def test_the_chart_makes_a_secret_of_its_own() -> None:
    made = {it["metadata"]["name"]: it for it in resources(render()) if it["kind"] == "Secret"}
    secret = base64.b64decode(made["shop-postroad-cluster"]["data"]["secret"]).decode()
    check_secrets((secret,))
    named = resources(render("secret.existingSecret=shared"))
    assert "shop-postroad-cluster" not in {it["metadata"]["name"] for it in named}


def test_nodes_are_given_more_time_than_they_take_to_drain() -> None:
    chart = yaml.safe_load((CHART / "values.yaml").read_text())
    assert chart["terminationGracePeriodSeconds"] > chart["drainSeconds"]
    command = [tool("helm"), "template", "shop", str(CHART), "--set", "drainSeconds=60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "killed while they drain" in done.stderr

    (drain,) = re.findall(r'"--drain-s", "(\d+)"', (DEPLOY / "Dockerfile").read_text())
    (grace,) = re.findall(r"stop_grace_period: (\d+)s", (DEPLOY / "compose.yaml").read_text())
    assert int(grace) > int(drain)

    unit = (DEPLOY / "systemd" / "postroad@.service").read_text()
    (drain,) = re.findall(r"--drain-s (\d+)$", unit, re.M)
    (grace,) = re.findall(r"^TimeoutStopSec=(\d+)s$", unit, re.M)
    assert int(grace) > int(drain)


@pytest.mark.parametrize(
    "wrong",
    [
        "replicas=0",
        "replica=3",
        "admin.remote=all",
        "image.pullPolicy=Sometimes",
        "store.url=postgresql://db/mail?schema=all",
    ],
)
def test_wrong_values_of_the_chart_are_refused(wrong: str) -> None:
    command = [tool("helm"), "template", "shop", str(CHART), "--set", wrong]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "don't meet the specifications of the schema" in done.stderr


def test_compose_is_well_made() -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    run(tool("check-jsonschema"), *schema, str(DEPLOY / "compose.yaml"))


def test_nodes_of_compose_understand_their_configuration() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    nodes = {name: it for name, it in compose["services"].items() if it["image"] == "postroad"}
    assert len(nodes) == 3
    for name, service in nodes.items():
        needed = ("POSTROAD_ADMIN_TOKEN", "POSTROAD_ADMIN_READ_TOKEN", "POSTROAD_NODE_SECRET")
        for variable in needed:
            assert service["environment"][variable].startswith(f"${{{variable}:?"), variable
        environ: Mapping[str, str] = service["environment"] | {it: it * 2 for it in needed}
        config = load_config(None, environ=environ).config
        assert config.node.name == name
        assert f"{name}:26502" in config.cluster.seeds
        assert config.is_closed
        assert config.admin_remote == "read"


def test_probes_do_not_take_a_node_out_of_service_for_what_an_operator_must_decide() -> None:
    (chart,) = re.findall(r"command: \[(postroad, check.*)\]", STATEFULSET.read_text())
    (image,) = re.findall(r"HEALTHCHECK .* CMD (\[.*\])", (DEPLOY / "Dockerfile").read_text())
    assert "--ready" in chart.split(", ")
    assert "--ready" in json.loads(image)


def test_what_compose_mounts_exists() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in compose["services"].values():
        for volume in service["volumes"]:
            if volume.startswith("./"):
                assert (DEPLOY / volume.partition(":")[0]).exists(), volume


def test_the_unit_is_well_made(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "postroad@.service").read_text()
    # What it starts must exist when it is verified.
    unit = tmp_path / "postroad@alpha.service"
    unit.write_text(text.replace("/opt/postroad/bin/postroad", "/bin/true"))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "postroad@alpha" not in done.stderr
    # From 0, nothing is exposed, to 10: times ten.
    run(
        *(tool("systemd-analyze"), "security", "--offline=true", "--no-pager"),
        *("--threshold=20", str(unit)),
    )
