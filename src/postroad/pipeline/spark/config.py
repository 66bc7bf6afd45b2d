"""How Spark is started: what users may choose, and the configuration that follows from it.

The configuration is tuned for streams of many small batches through Python.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import msgspec

from postroad.core import Address
from postroad.core.errors import ConfigError

LOOPBACK = "127.0.0.1"
ELIMINATION = "spark.sql.subexpressionElimination.enabled"
"""Whether Spark computes what is common to several expressions once, and ahead of them."""

_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
_LOCAL = re.compile(r"local(\[.*\])?")
# A cluster of processes of this machine, for tests of Spark itself.
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")
_LOOPBACK_MASTER = re.compile(r"(spark|sc)://(127(\.\d+){3}|localhost|\[::1\])(:\d+)?(/.*)?")
_PLACE = r"([^\s:,/@\[\]]+|\[[0-9a-fA-F:.]+\]):\d+"
_STANDALONE = re.compile(rf"spark://{_PLACE}(,{_PLACE})*")
_PASSED_ON = re.compile(r"yarn|k8s://\S+|sc://\S+")
_PACKAGE = re.compile(r"[^\s:,]+:[^\s:,]+:[^\s:,]+")
_MEMORY = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)
_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40}
_LOG_LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")

# Without a second number Spark gives up a whole batch when one task has failed once.
_LOCAL_ATTEMPTS = 4
# An executor that dies costs each of its tasks an attempt, and several may die in turn.
_CLUSTER_ATTEMPTS = 8
# Attempts that lose are thrown away with what they staged: short tasks are not worth a second.
_SPECULATION_AFTER = "10s"
# Executors send a heartbeat every ten seconds.
_EXECUTOR_SILENCE = "40s"
_EXECUTOR_LOOK = "10s"
# A JVM optimizes what has run so often: here five times what is usual. Otherwise that takes a third
# of the CPU time until the first batch is done; what is done for each row soon gets there anyway.
_OPTIMIZE_AFTER = {
    "InvocationThreshold": 25_000,
    "MinInvocationThreshold": 3_000,
    "CompileThreshold": 75_000,
    "BackEdgeThreshold": 200_000,
}
# glibc gives freed memory back to the system, only to ask for it again with the next batch; the
# page faults cost a worker almost half of its time.
_WORKER_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TOP_PAD_": "67108864",
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
}


def count_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def local_master() -> str:
    """All cores of this machine, with retries of failed tasks."""
    return f"local[{count_cores()},{_LOCAL_ATTEMPTS}]"


class SparkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to start Spark. The defaults run jobs on all cores of this machine."""

    master: str = msgspec.field(default_factory=local_master)
    """`local[cores,attempts]` for this process, `spark://host:port` of a standalone master (several
    with commas), `yarn`, `k8s://https://host:port`, `local-cluster[workers,cores,MiB]`, or
    `sc://host:port` of a Spark Connect server, whose own configuration then counts."""
    bind: str = ""
    """`host[:port]` where the driver and the job's coordinator listen for executors, the port being
    the coordinator's; by default the address by which this machine reaches the master, or the
    loopback interface if all is on this machine."""
    advertise: str = ""
    """The host that executors are told, if it is another than that of `bind`."""
    app_name: str = "postroad"
    """What operators of a cluster see."""
    driver_memory: str = "1g"
    """Heap of the JVM beside this process; with a local master all tasks share it."""
    executor_memory: str = "1g"
    """Heap of each executor of a cluster."""
    worker_memory: str = "4g"
    """Address space of each Python worker; a function that wants more has failed with a
    MemoryError, and harms no other."""
    partitions: int | None = None
    """Parts of a batch that are worked on at once: as many as the executors have cores, by default,
    whether they come or go meanwhile."""
    python: str = sys.executable
    """The Python of the workers; on a cluster, its path on every machine."""
    python_path: tuple[str, ...] = ()
    """Directories that workers import functions from, besides what is installed there."""
    py_files: tuple[str, ...] = ()
    """Python files, ZIP files and wheels that Spark brings to the workers."""
    jars: tuple[str, ...] = ()
    """Java libraries for the driver and executors: paths or URLs."""
    packages: tuple[str, ...] = ()
    """The same from Maven's repositories, as `group:artifact:version`."""
    is_stateful: bool | None = None
    """Whether Spark keeps what windows hold, in its state store below the checkpoint, which every
    machine must reach then. By default it does if all is on this machine."""
    has_local_checkpoints: bool = True
    """Whether checkpoints lie in a directory of the driver's machine, not in a remote store."""
    log_level: str = "ERROR"
    """From which level on Spark writes to the standard error stream."""
    java_options: str = ""
    """Further options of the driver's JVM."""
    conf: dict[str, str] = {}
    """Properties of Spark that replace or complete those that follow from the settings above."""

    def __post_init__(self) -> None:
        kinds = (_LOCAL, _LOCAL_CLUSTER, _STANDALONE, _PASSED_ON)
        if not any(kind.fullmatch(self.master) for kind in kinds):
            forms = (
                "local[cores,attempts], spark://host:port, yarn, k8s://https://host:port, "
                "local-cluster[workers,cores,MiB] or sc://host:port"
            )
            _refuse("master", self.master, forms)
        self._check_address()
        self._check_files()
        for name in ("driver_memory", "executor_memory", "worker_memory"):
            if not _MEMORY.fullmatch(getattr(self, name)):
                _refuse(name, getattr(self, name), "a number with k, m, g or t, such as 512m")
        if self.partitions is not None and self.partitions < 1:
            _refuse("partitions", self.partitions, "1 or more")
        if self.log_level not in _LOG_LEVELS:
            _refuse("log_level", self.log_level, f"one of {', '.join(_LOG_LEVELS)}")

    def _check_address(self) -> None:
        try:
            self.bind_address  # noqa: B018 - it refuses what is none
        except ConfigError as error:
            raise ConfigError(f"Spark setting bind: {error}") from error

    def _check_files(self) -> None:
        for package in self.packages:
            if not _PACKAGE.fullmatch(package):
                _refuse("packages", package, "of the form group:artifact:version")
        for name in ("jars", "py_files"):
            for path in getattr(self, name):
                if "," in path:
                    _refuse(name, path, "one path or URL each, without commas")
                if "://" not in path and not Path(path).exists():
                    raise ConfigError(f"Spark setting {name}: there is no file {path!r}")
        for key in self.conf:
            if not key.startswith("spark."):
                _refuse("conf", key, "a property of Spark, which begins with 'spark.'")
        if self.is_remote and (self.packages or self.jars or self.py_files):
            raise ConfigError(
                f"packages, jars and py_files are settings of the server at {self.master}, "
                "not of a program that connects to it"
            )

    @property
    def bind_address(self) -> Address | None:
        """Where to listen, if it is set; without a port, any."""
        if not self.bind:
            return None
        has_port = re.search(r"[^:\]]:\d+$|\]:\d+$", self.bind) is not None
        return Address.parse(self.bind if has_port else f"{self.bind}:0")

    @property
    def worker_bytes(self) -> int:
        """The memory of a worker in bytes."""
        return int(self.worker_memory[:-1]) << _SHIFTS[self.worker_memory[-1].lower()]

    @property
    def is_local(self) -> bool:
        """Whether tasks run in the driver's JVM."""
        return _LOCAL.fullmatch(self.master) is not None

    @property
    def is_remote(self) -> bool:
        """Whether a server has the session."""
        return self.master.startswith("sc://")

    @property
    def is_loopback(self) -> bool:
        """Whether nobody on another machine has to reach the driver."""
        kinds = (_LOCAL, _LOCAL_CLUSTER, _LOOPBACK_MASTER)
        return any(kind.fullmatch(self.master) for kind in kinds)


def configuration(settings: SparkConfig) -> dict[str, str]:
    """The properties to start Spark with."""
    conf = {
        "spark.master": settings.master,
        "spark.app.name": settings.app_name,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": _java_options(settings),
        # A job may run for weeks: its UI remembers the last hours.
        "spark.ui.killEnabled": "false",
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "10000",
        "spark.sql.ui.retainedExecutions": "100",
        "spark.sql.streaming.ui.retainedProgressUpdates": "100",
        # A query that is stopped as it notes its first batch leaves a file there, and would never
        # start again. Whose directory it is, is noted beside it.
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
        # A worker that hangs in a function is ended soon after its task is.
        "spark.python.task.killTimeout": "200ms",
        "spark.ui.showConsoleProgress": "false",
        # Plans each query again while it runs: of no use to streams, which warn about it.
        "spark.sql.adaptive.enabled": "false",
        # A Hive metastore takes seconds to start, and there are no tables.
        "spark.sql.catalogImplementation": "in-memory",
        # TCP on the loopback interface stalls about 40 ms for each hop of each batch.
        "spark.python.unix.domain.socket.enabled": "true",
        # A file for each output at a time, where otherwise rows would be sorted by their outputs.
        "spark.sql.maxConcurrentOutputFileWriters": "64",
        # Columns are matched by position: exchanged ones would pass silently.
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
        # On one machine two attempts at the same only take cores from each other.
        "spark.speculation": "false",
        # What is computed ahead of a `try` is not caught by it.
        ELIMINATION: "false",
    }
    conf |= _address_lines(settings) | _cluster_lines(settings) | _checkpoint_lines(settings)
    if settings.partitions is not None:
        conf["spark.default.parallelism"] = str(settings.partitions)
    # Of the Python workers alone, on this machine as on others: the JVM is left as it is.
    conf |= {f"spark.executorEnv.{name}": value for name, value in _WORKER_ENVIRONMENT.items()}
    if settings.python_path:
        # The only way that also reaches the processes beside the driver; files that are added to
        # a session do not.
        conf["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(settings.python_path)
    files = (
        ("spark.submit.pyFiles", settings.py_files),
        ("spark.jars", settings.jars),
        ("spark.jars.packages", settings.packages),
    )
    conf |= {name: ",".join(values) for name, values in files if values}
    return conf | settings.conf


def environment(settings: SparkConfig, *, java_home: Path) -> dict[str, str]:
    """The variables that the driver's JVM is started with, besides those of this process."""
    variables = {
        "JAVA_HOME": str(java_home),
        # Spark would take whatever `python3` is first on the PATH.
        "PYSPARK_PYTHON": settings.python,
    }
    lines = _address_lines(settings)
    if lines:
        # A machine's own name need not resolve, and then Spark does not start.
        variables["SPARK_LOCAL_IP"] = lines["spark.driver.host"].strip("[]")
    return variables


def _java_options(settings: SparkConfig) -> str:
    # `spark.log.level` comes too late: Spark has said much by the time it reads its properties.
    options = (
        f'"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}"',
        f"-Dpostroad.log.level={settings.log_level}",
        *(f"-XX:Tier4{name}={count}" for name, count in _OPTIMIZE_AFTER.items()),
        settings.java_options,
    )
    return " ".join(filter(None, options))


def _address_lines(settings: SparkConfig) -> dict[str, str]:
    bind = settings.bind_address
    if bind is None:
        if not settings.is_loopback:
            return {}
        bind = Address(LOOPBACK, 0)
    host = settings.advertise or bind.host
    # Spark takes what follows a colon for a port.
    lines = {"spark.driver.bindAddress": bind.host, "spark.driver.host": host}
    return {name: f"[{it}]" if ":" in it else it for name, it in lines.items()}


def _cluster_lines(settings: SparkConfig) -> dict[str, str]:
    if settings.is_local:
        return {}
    return {
        "spark.executor.memory": settings.executor_memory,
        "spark.task.maxFailures": str(_CLUSTER_ATTEMPTS),
        # A machine that has become slow, or is cut off, does not hold up a batch.
        "spark.speculation": "true",
        "spark.speculation.minTaskRuntime": _SPECULATION_AFTER,
        # Lost executors are found within a minute; by default, after two to three.
        "spark.storage.blockManagerHeartbeatTimeoutMs": _EXECUTOR_SILENCE,
        "spark.network.timeoutInterval": _EXECUTOR_LOOK,
    }


def _checkpoint_lines(settings: SparkConfig) -> dict[str, str]:
    """Quicker logs of offsets and commits: 7 ms for each batch instead of 62."""
    if not settings.has_local_checkpoints:
        return {}
    package = "org.apache.spark.sql.execution.streaming.checkpointing"
    manager = f"{package}.FileSystemBasedCheckpointFileManager"
    lines = {"spark.sql.streaming.checkpointFileManagerClass": manager}
    # Leaves out checksum files; queries that keep state have sessions with another one.
    lines["spark.hadoop.fs.file.impl"] = "org.apache.hadoop.fs.RawLocalFileSystem"
    return lines


def _refuse(name: str, value: object, valid: str) -> None:
    raise ConfigError(f"Spark setting {name} is {value!r}; it must be {valid}")
