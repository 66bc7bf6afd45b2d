"""The configuration that follows from the settings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline.spark.config import SparkConfig, configuration, count_cores, environment

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
RAW_FILES = "spark.hadoop.fs.file.impl"
JAVA_HOME = Path("/java")


def test_defaults_use_all_cores_and_retry_tasks() -> None:
    conf = configuration(SparkConfig())
    cores = count_cores()

    assert conf["spark.master"] == f"local[{cores},4]"


def test_parallelism_is_left_to_the_cluster_unless_it_is_set() -> None:
    conf = configuration(SparkConfig(master="spark://host:7077"))

    assert "spark.default.parallelism" not in conf
    assert "spark.sql.shuffle.partitions" not in conf


def test_settings_reach_the_configuration() -> None:
    settings = SparkConfig(
        master="local[3,2]",
        app_name="words",
        driver_memory="512m",
        partitions=5,
        log_level="WARN",
        java_options="-XX:+UseSerialGC",
    )
    conf = configuration(settings)

    assert conf["spark.master"] == "local[3,2]"
    assert conf["spark.app.name"] == "words"
    assert conf["spark.driver.memory"] == "512m"
    assert conf["spark.default.parallelism"] == "5"
    options = conf["spark.driver.extraJavaOptions"]
    assert " -Dpostroad.log.level=WARN " in options
    # After ours, over which they win.
    assert options.endswith(" -XX:+UseSerialGC")


def test_log_configuration_exists() -> None:
    options = configuration(SparkConfig())["spark.driver.extraJavaOptions"]
    _, _, rest = options.partition("-Dlog4j2.configurationFile=file://")

    assert "rootLogger" in Path(rest.partition('"')[0]).read_text()


def test_own_properties_win() -> None:
    own = {"spark.ui.enabled": "true", "spark.executorEnv.PYTHONPATH": "lib"}
    conf = configuration(SparkConfig(conf=own))

    assert conf.items() >= own.items()


def test_workers_keep_their_memory() -> None:
    for master in ("local[2,4]", "spark://north:7077"):
        conf = configuration(SparkConfig(master=master))
        assert conf["spark.executorEnv.MALLOC_TRIM_THRESHOLD_"] == "1000000000"
        assert conf["spark.executorEnv.MALLOC_MMAP_THRESHOLD_"] == "1000000000"
        assert conf["spark.executorEnv.MALLOC_TOP_PAD_"] == "67108864"


def test_quick_checkpoints_only_where_they_work() -> None:
    for has_local_checkpoints, expected in ((True, {MANAGER, RAW_FILES}), (False, set())):
        settings = SparkConfig(has_local_checkpoints=has_local_checkpoints)
        found = configuration(settings).keys() & {MANAGER, RAW_FILES}
        assert found == expected, has_local_checkpoints


def test_driver_hides_from_other_machines_only_if_they_do_not_need_it() -> None:
    for master, is_local, is_loopback in (
        ("local", True, True),
        ("local[2,4]", True, True),
        ("spark://127.0.0.1:7077", False, True),
        ("spark://localhost:7077", False, True),
        ("spark://[::1]:7077", False, True),
        ("spark://127.0.0.1:7077,north:7077", False, False),
        ("spark://north:7077", False, False),
    ):
        settings = SparkConfig(master=master)
        conf = configuration(settings)
        variables = environment(settings, java_home=JAVA_HOME)

        assert (conf.get("spark.driver.host") == "127.0.0.1") is is_loopback, (
            master,
            is_local,
            is_loopback,
        )
        assert ("spark.driver.bindAddress" in conf) is is_loopback, (master, is_local, is_loopback)
        assert ("SPARK_LOCAL_IP" in variables) is is_loopback, (master, is_local, is_loopback)
        assert ("spark.executor.memory" not in conf) is is_local, (master, is_local, is_loopback)
        assert ("spark.task.maxFailures" not in conf) is is_local, (master, is_local, is_loopback)


def test_environment_names_java_and_python() -> None:
    variables = environment(SparkConfig(), java_home=JAVA_HOME)

    assert variables["JAVA_HOME"] == "/java"
    assert variables["PYSPARK_PYTHON"] == sys.executable


def test_wrong_setting_is_named() -> None:
    wrong: list[tuple[str, Any]] = [
        ("master", "spark://north"),
        ("master", "spark://north:7077,south"),
        ("master", "local-cluster[2]"),
        ("master", "k8s://"),
        ("master", "localhost"),
        ("driver_memory", "1 GB"),
        ("driver_memory", "0g"),
        ("executor_memory", "1024"),
        ("partitions", 0),
        ("log_level", "quiet"),
    ]
    for key, value in wrong:
        text = re.escape(f"Spark setting {key} is {value!r}; it must be")
        with pytest.raises(ConfigError, match=text):
            SparkConfig(**{key: value})


def test_masters_of_every_kind_are_passed_on_to_spark() -> None:
    for master in (
        "yarn",
        "k8s://https://10.0.0.1:6443",
        "local-cluster[2,1,1024]",
        "spark://north:7077,south:7077",
        "spark://[fd00::1]:7077",
    ):
        assert configuration(SparkConfig(master=master))["spark.master"] == master


def test_driver_listens_where_executors_reach_it() -> None:
    for bind, advertise, expected in (
        ("10.1.2.3", "", ("10.1.2.3", "10.1.2.3")),
        ("10.1.2.3:7000", "", ("10.1.2.3", "10.1.2.3")),
        ("0.0.0.0:0", "10.1.2.3", ("0.0.0.0", "10.1.2.3")),
        ("[fd00::1]:7000", "", ("[fd00::1]", "[fd00::1]")),
        ("[fd00::1]", "", ("[fd00::1]", "[fd00::1]")),
    ):
        settings = SparkConfig(master="yarn", bind=bind, advertise=advertise)
        conf = configuration(settings)

        lines = (conf["spark.driver.bindAddress"], conf["spark.driver.host"])
        assert lines == expected, bind
        variables = environment(settings, java_home=JAVA_HOME)
        assert variables["SPARK_LOCAL_IP"] == expected[1].strip("[]"), bind


def test_clusters_try_slow_tasks_twice_and_miss_executors_soon() -> None:
    cluster = configuration(SparkConfig(master="yarn"))

    assert cluster["spark.speculation"] == "true"
    assert cluster["spark.storage.blockManagerHeartbeatTimeoutMs"] == "40s"
    assert configuration(SparkConfig())["spark.speculation"] == "false"


def test_libraries_reach_the_configuration(tmp_path: Path) -> None:
    names = ("a.jar", "b.jar", "c.zip")
    for name in names:
        (tmp_path / name).touch()
    jars = (str(tmp_path / "a.jar"), str(tmp_path / "b.jar"), "https://north/d.jar")
    conf = configuration(
        SparkConfig(
            jars=jars, py_files=(str(tmp_path / "c.zip"),), packages=("org:one:1", "org:two:2")
        )
    )

    assert conf["spark.jars"] == ",".join(jars)
    assert conf["spark.submit.pyFiles"] == str(tmp_path / "c.zip")
    assert conf["spark.jars.packages"] == "org:one:1,org:two:2"


def test_wrong_library_address_or_property_is_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"jars": ("nowhere.jar",)}, "jars: there is no file 'nowhere.jar'"),
        ({"py_files": ("nowhere.zip",)}, "py_files: there is no file 'nowhere.zip'"),
        ({"packages": ("org:one",)}, "packages is 'org:one'; .*group:artifact:version"),
        ({"conf": {"executor.memory": "1g"}}, "conf is 'executor.memory'; .*begins with 'spark.'"),
        ({"bind": "10.1.2.3:70000"}, "bind: .*the port must be 0 to 65535"),
        ({"bind": "fd00::1"}, "bind: .*in brackets"),
        ({"master": "sc://north", "packages": ("org:one:1",)}, "of the server at sc://north"),
    ]
    for settings, text in wrong:
        with pytest.raises(ConfigError, match=text):
            SparkConfig(**settings)
