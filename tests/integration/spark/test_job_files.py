"""The worked example of the page about pipelines, as its readers run it: by the command, on Spark.

One job has all outputs, because each start of Spark takes ten seconds and more.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from zipfile import ZipFile

import psycopg
import pytest

from tests.support.servers.postgres import fresh_database
from tests.support.servers.spark import POSTGRES_JAR, QUICK_JAVA, quick_environment
from tests.support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 150
PAGE = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
FILES = {
    name: text
    for text, name in re.findall(r"^```\w+\n(# ([\w-]+\.\w+)\n.*?)^```$", PAGE, re.M | re.S)
}
DRAIN = """
name = "drain"
workflow = [["checked", "out"]]

[[catalog]]
name = "checked"
type = "input"
connector = "queue"
options = { queue = "checked", bounded = true }

[[catalog]]
name = "out"
type = "output"
connector = "jsonl"
options = { path = "drained" }
"""
IVY = """
<ivy-module version="2.0">
  <info organisation="org.example" module="tiny" revision="1.0"/>
  <publications><artifact name="tiny" type="jar" ext="jar"/></publications>
</ivy-module>
"""
EXPECTED = re.compile(r"Spark UI: http://127\.0\.0\.1:\d+$|[\d,]+ acknowledged \(")
SPARK = ("--spark", "--jars", str(POSTGRES_JAR))
# Refused by the function, and by the table.
EMPTY, REFUSED = {3, 13}, 5


class Done(NamedTuple):
    """What became of a command."""

    status: int
    stdout: str
    stderr: str


class Shop:
    """A directory with what the page says, and the database of its reader."""

    def __init__(self, place: Path, dsn: str) -> None:
        self.place = place
        self._dsn = dsn
        parts = urlsplit(dsn)
        url = f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"
        job = FILES["orders.toml"].replace("jdbc:postgresql://localhost:5432/shop", url)
        job = job.replace('user = "shop"', f'user = "{parts.username}"')
        job = job.replace('password = "secret"', f'password = "{parts.password}"')
        files = {name: FILES[name] for name in ("shop.py", "make_table.py", "postroad.toml")}
        for name, text in {**files, "orders.toml": job, "drain.toml": DRAIN}.items():
            (place / name).write_text(text.replace("/srv/lake", str(place / "lake")))
        with ZipFile(place / "functions.zip", "w") as functions:
            functions.write(place / "shop.py", "shop.py")
        (place / "orders").mkdir()
        (place / "lake").mkdir()
        with psycopg.connect(dsn, autocommit=True) as database:
            database.execute(
                "CREATE TABLE orders (n BIGINT PRIMARY KEY CHECK (n <> 5), customer TEXT,"
                " amount BIGINT)"
            )

    def add_orders(self, name: str, numbers: range) -> None:
        orders = [
            {"n": n, "customer": f"é{n}", "amount": 0 if n in EMPTY else 10 * n} for n in numbers
        ]
        lines = "".join(json.dumps(it) + "\n" for it in orders)
        (self.place / "orders" / name).write_text(lines)

    def run(self, *command: str) -> Done:
        environment = {
            **os.environ,
            **quick_environment(),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        }
        done = subprocess.run(
            command,
            cwd=self.place,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def dead(self) -> dict[str, int]:
        """The dead letters: reasons, and attempts."""
        letters = json.loads(
            self.run("postroad", "job", "dead-letters", "orders.toml", "--json").stdout
        )
        return {it["error"]: it["attempts"] for it in letters}

    def outputs(self) -> dict[str, list[int]]:
        """The numbers of orders that each output has."""
        import pyarrow.dataset
        from deltalake import DeltaTable
        from pyiceberg.catalog import load_catalog

        assert self.run("postroad", "job", "run", "drain.toml").status == 0
        lines = [it.read_text().splitlines() for it in (self.place / "drained").glob("*.jsonl")]
        queue = [json.loads(line) for those in lines for line in those]
        with psycopg.connect(self._dsn) as database:
            rows = database.execute("SELECT n FROM orders").fetchall()
        report = pyarrow.dataset.dataset(self.place / "report", format="parquet")
        delta = DeltaTable(self.place / "lake" / "orders")
        catalog = load_catalog("default", type="sql", uri=f"sqlite:///{self.place}/lake/catalog.db")
        iceberg = catalog.load_table("sales.orders").scan().to_arrow()
        tables = {
            "report": report.to_table(),
            "delta": delta.to_pyarrow_table(),
            "iceberg": iceberg,
        }
        found: dict[str, list[Any]] = {name: it["n"].to_pylist() for name, it in tables.items()}
        found |= {"checked": [it["n"] for it in queue], "database": [n for (n,) in rows]}
        return {name: sorted(those) for name, those in found.items()}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    if not POSTGRES_JAR.exists():
        pytest.skip(f"{POSTGRES_JAR} is not there: install libpostgresql-jdbc-java")
    with fresh_database() as dsn:
        shop = Shop(tmp_path_factory.mktemp("shop"), dsn)
        made = shop.run("python", "make_table.py")
        assert made.status == 0, made.stderr
        yield shop


def make_package(place: Path) -> None:
    """A Java library as Ivy keeps it: no server is asked for it."""
    for name, text in (("ivys/ivy.xml", IVY), ("jars/tiny.jar", "")):
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text(text)
    with ZipFile(place / "jars" / "tiny.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")


def read_environment(events: Path) -> dict[str, Any]:
    """What Spark's event log says of its surroundings."""
    files = [path for path in events.rglob("*") if path.is_file()]
    lines = [line for path in files for line in path.read_text().splitlines()]
    found: list[dict[str, Any]] = [
        it for it in map(json.loads, lines) if it["Event"] == "SparkListenerEnvironmentUpdate"
    ]
    return found[0]


def unexpected_lines(stderr: str) -> list[str]:
    """What is said besides progress and the address of the UI."""
    return [it for it in stderr.splitlines() if not EXPECTED.match(it)]


def wanted(upto: int) -> dict[str, list[int]]:
    good = [n for n in range(upto) if n not in EMPTY and n != 0]
    names = ("report", "checked", "delta", "iceberg")
    return dict.fromkeys(names, good) | {"database": [n for n in good if n != REFUSED]}


def test_job_with_every_output_runs_by_the_command_and_adds_up(shop: Shop) -> None:
    shop.add_orders("b.json", range(1, 10))
    first = shop.run("postroad", "job", "run", "orders.toml", *SPARK)
    assert unexpected_lines(first.stderr) == [], first.stderr
    # Each task has its rate and latency.
    assert re.search(r"; in [\d,]+/s .* ms, check [\d,]+/s .* ms, report ", first.stderr)
    # One order has no amount, and is tried twice; another is refused by the table.
    assert (first.status, first.stdout) == (4, "7 acknowledged, 3 failures, 2 dead\n"), first
    assert shop.outputs() == wanted(10)
    dead = shop.dead()
    assert dead.pop("ValueError: order 3 has the amount 0") == 2
    ((reason, attempts),) = dead.items()
    assert "orders_n_check" in reason and attempts == 1


def test_job_run_again_does_nothing_and_options_reach_spark(shop: Shop) -> None:
    (shop.place / "events").mkdir()
    # From now on the function is not beside the job.
    (shop.place / "shop.py").unlink()
    make_package(shop.place / "ivy" / "local" / "org.example" / "tiny" / "1.0")
    again = shop.run(
        *("postroad", "job", "run", "orders.toml", "--master", "local[1,4]"),
        *("--jars", str(POSTGRES_JAR), "--py-files", "functions.zip"),
        *("--packages", "org.example:tiny:1.0", "--bind", "127.0.0.2", "--partitions", "3"),
        *("--conf", f"spark.jars.ivy={shop.place}/ivy", "--conf", "spark.eventLog.enabled=true"),
        *(
            "--conf",
            f"spark.eventLog.dir={shop.place}/events",
            "--conf",
            "spark.eventLog.compress=false",
        ),
    )
    assert (again.status, again.stdout) == (4, "0 acknowledged, 0 failures, 2 dead\n"), again
    assert shop.outputs() == wanted(10)
    environment = read_environment(shop.place / "events")
    properties = environment["Spark Properties"]
    assert properties["spark.master"] == "local[1,4]"
    assert properties["spark.driver.host"] == properties["spark.driver.bindAddress"] == "127.0.0.2"
    assert properties["spark.default.parallelism"] == "3"
    assert properties["spark.jars.packages"] == "org.example:tiny:1.0"
    jars = " ".join(environment["Classpath Entries"])
    assert "postgresql.jar" in jars and "org.example_tiny-1.0.jar" in jars
    assert "functions.zip" in properties["spark.submit.pyFiles"]


def test_new_files_are_taken_by_the_next_run(shop: Shop) -> None:
    shop.add_orders("a.json", range(10, 20))
    later = shop.run("postroad", "job", "run", "orders.toml", *SPARK, "--py-files", "functions.zip")
    assert (later.status, later.stdout) == (4, "9 acknowledged, 2 failures, 3 dead\n"), later
    assert shop.outputs() == wanted(20)
    assert "ValueError: order 13 has the amount 0" in shop.dead()


def test_program_for_spark_submit_goes_on_where_the_command_was(shop: Shop) -> None:
    shop.add_orders("c.json", range(20, 30))
    (shop.place / "postroad-job.py").write_text(FILES["postroad-job.py"])
    done = shop.run(
        *("spark-submit", "--master", "local[2,4]", "--driver-memory", "512m"),
        *("--conf", f"spark.driver.defaultJavaOptions={QUICK_JAVA}"),
        *("--jars", str(POSTGRES_JAR), "--py-files", "functions.zip", "postroad-job.py"),
    )
    assert (done.status, done.stdout) == (0, "10 acknowledged, 3 dead\n"), done
    assert shop.outputs() == wanted(30)


def test_spark_that_does_not_start_is_one_sentence(shop: Shop) -> None:
    conf = "spark.driver.memory=much"
    done = shop.run(
        *("postroad", "job", "run", "orders.toml", *SPARK, "--py-files", "functions.zip"),
        *("--conf", conf),
    )
    assert done.status == 1, done
    assert "-Xmxmuch" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("postroad: Spark does not start; what its JVM")
    assert "Traceback" not in done.stderr
