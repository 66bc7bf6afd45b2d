"""Spark started and stopped from Python, leaving the process as it was.

All functions block for seconds: programs on an event loop call them through `asyncio.to_thread`.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from postroad.core.errors import ConfigError, MissingExtraError, UsageError
from postroad.pipeline.spark.addresses import place_driver, require_master
from postroad.pipeline.spark.config import ELIMINATION, SparkConfig, configuration, environment
from postroad.pipeline.spark.home import find_quick_home
from postroad.pipeline.spark.java import find_java_home
from postroad.pipeline.spark.jvm_output import JvmOutput

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

STOP_S = 20.0
"""Time for running jobs to be cancelled; then the JVM is killed."""
_EXIT_S = 10.0
_POLL_S = 0.05
_PROBE_S = 5.0

# mapInArrow asks for pandas.
_PACKAGES = ("pyspark", "pyarrow", "numpy", "pandas")
_CONNECT_PACKAGES = ("grpc", "grpc_status", "zstandard")
_CONNECT_PORT = 15002
# pyspark leaves these behind, and needs them while a session runs.
_LEFT_BEHIND = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")

_logger = logging.getLogger(__name__)
# The environment belongs to the whole process; one at a time may change it.
_starting = threading.Lock()


@contextmanager
def spark_session(settings: SparkConfig | None = None) -> Iterator[SparkSession]:
    """A session that is stopped at the end, however that comes."""
    session = start_spark(settings)
    # Not sooner: a missing package was told by then.
    from py4j.protocol import Py4JError

    try:
        yield session
    except Py4JError as error:
        # pyspark may stumble over the connection that Ctrl-C has cut.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    finally:
        stop_spark(session)


def start_spark(settings: SparkConfig | None = None) -> SparkSession:
    """Start a JVM and a session in it. A process has one at a time.

    Raises:
        ConfigError: there is no Java for it, nobody listens where its server or master should be,
            there is no way to it, or a property is wrong.
        MissingExtraError: the `spark` extra is not installed.
        UsageError: this process runs a session already.
    """
    settings = settings or SparkConfig()
    require_packages()
    if settings.is_remote:
        return _connect(settings.master)
    settings = place_driver(settings)
    require_master(settings.master)
    # It says at the level of information whenever Spark calls back, which it does for each batch.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with _starting:
        _refuse_second()
        variables = environment(settings, java_home=find_java_home())
        if "SPARK_HOME" not in os.environ and (home := find_quick_home(settings)) is not None:
            variables["SPARK_HOME"] = str(home)
        # A JVM that somebody left idle has another environment and another heap.
        _end_jvm()
        with _in_environment(variables):
            session = _make_in_thread(configuration(settings))
    # It was made in another thread.
    activate(session)
    server: Any = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        # Otherwise it prints a traceback whenever a worker goes with a query that is stopped.
        server.handle_error = _note_lost_worker
    return session


def stop_spark(session: SparkSession) -> None:
    """Cancel what runs, end the session and its JVM. Nothing happens when that was done before."""
    if not hasattr(session, "_jsparkSession"):
        # It is a server's.
        session.stop()
        return
    from pyspark import SparkContext

    if SparkContext._active_spark_context not in (None, session.sparkContext):
        return
    # In a thread of its own: one that was interrupted has a connection to the JVM that still
    # waits for the answer to something else.
    stopping = threading.Thread(target=_stop_session, args=(session,), daemon=True)
    try:
        stopping.start()
        stopping.join(STOP_S)
    finally:
        _end_jvm()
        stopping.join()
        _clean_environment()


def _connect(url: str) -> SparkSession:
    if any(importlib.util.find_spec(name) is None for name in _CONNECT_PACKAGES):
        raise MissingExtraError("spark-connect", "running jobs through Spark Connect")
    _probe(url)
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    session: Any = RemoteSession.builder.remote(url).create()
    # The server's other settings are its own.
    session.conf.set(ELIMINATION, "false")
    return session  # type: ignore[no-any-return]


def _probe(url: str) -> None:
    """Raise ConfigError, if nobody listens there: pyspark would try again for many minutes."""
    try:
        parts = urlsplit(url)
        place = (parts.hostname or "", parts.port or _CONNECT_PORT)
        socket.create_connection(place, _PROBE_S).close()
    except (OSError, ValueError) as error:
        # What follows the address may have a secret.
        where = url.partition("/;")[0]
        raise ConfigError(f"no Spark Connect server can be reached at {where}: {error}") from error


def _note_lost_worker(request: object, address: object) -> None:
    _logger.debug("a worker of Spark went away", exc_info=True)


def has_jvm(session: SparkSession) -> bool:
    """Whether the JVM of a session still runs, as far as it is a process of ours."""
    gateway: Any = getattr(getattr(session, "sparkContext", None), "_gateway", None)
    process = getattr(gateway, "proc", None)
    return process is None or process.poll() is None


def count_task_slots(session: SparkSession) -> int:
    """How many tasks of a session run at once: as many as its executors have cores just now."""
    context: Any = getattr(session, "_sc", None)
    if context is not None:
        return max(int(context.defaultParallelism), 1)
    # Through Spark Connect: Spark cuts a range into as many parts.
    parts = session.range(1 << 16).selectExpr("spark_partition_id() AS part").distinct()
    return max(parts.count(), 1)


def activate(session: SparkSession) -> None:
    """Have Spark know the session in this thread: it looks for sources and sinks there."""
    jvm: Any = getattr(session, "_jvm", None)
    # Through Spark Connect there is none, and no need.
    if jvm is not None:
        java: Any = session
        java._get_j_spark_session_class(jvm).setActiveSession(java._jsparkSession)


def submitted_properties() -> dict[str, str]:
    """What spark-submit was told, if it has started this program; otherwise nothing."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    require_packages()
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def require_packages() -> None:
    """Raise MissingExtraError, if the `spark` extra is not installed."""
    if any(importlib.util.find_spec(name) is None for name in _PACKAGES):
        raise MissingExtraError("spark", "running jobs on Spark")


def _refuse_second() -> None:
    from pyspark import SparkContext

    if (running := SparkContext._active_spark_context) is not None:
        raise UsageError(
            f"this process runs the Spark application {running.appName!r}; stop that one first"
        )


def _make_in_thread(conf: Mapping[str, str]) -> SparkSession:
    """Make a session where Ctrl-C cannot come between the start of a JVM and our knowing of it.

    In the main thread pyspark would also take over Ctrl-C for ever.
    """
    try:
        with ThreadPoolExecutor(1) as threads:
            return _await_session(threads.submit(_make_session, conf))
    except BaseException:
        _end_jvm()
        _clean_environment()
        raise


def _clean_environment() -> None:
    for name in _LEFT_BEHIND:
        os.environ.pop(name, None)


def _await_session(starting: Future[SparkSession]) -> SparkSession:
    try:
        return starting.result()
    except BaseException:
        # Without its JVM a start that goes on soon fails.
        while not starting.done():
            _end_jvm()
            wait([starting], _POLL_S)
        raise


def _make_session(conf: Mapping[str, str]) -> SparkSession:
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    properties = SparkConf().setAll(list(conf.items()))
    try:
        # Not by SparkSession.builder, which would join whatever session another thread makes.
        return SparkSession(SparkContext(conf=properties, gateway=_launch_jvm(properties)))
    except PySparkRuntimeError as error:
        raise ConfigError(
            f"Spark does not start; what its JVM has printed says why: {error}"
        ) from error
    except Py4JJavaError as error:
        raise ConfigError(f"Spark does not start: {error.java_exception}") from error


def _launch_jvm(properties: SparkConf) -> Any:
    """Start a JVM whose messages go through us; under spark-submit, take the one that runs."""
    from pyspark.java_gateway import launch_gateway

    output = JvmOutput()
    try:
        gateway: Any = launch_gateway(  # type: ignore[no-untyped-call]  # it has no types
            properties, {"stderr": output.descriptor}
        )
        gateway.output = output
        return gateway
    finally:
        output.close()


def _stop_session(session: SparkSession) -> None:
    if session.sparkContext._jsc is None:
        return
    try:
        session.stop()
    except Exception:
        # Of several kinds, as it comes from sockets, py4j or Java. The JVM is ended anyway.
        _logger.debug("Spark's JVM was gone before its session was stopped", exc_info=True)


def _end_jvm() -> None:
    """End the JVM; pyspark itself would keep it until this process ends."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    # Under spark-submit the JVM is our parent and goes on.
    if gateway is None or gateway.proc is None:
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    try:
        _end_process(gateway.proc)
    finally:
        # Now nothing answers: it closes the sockets on our side, and waits for nobody.
        gateway.shutdown()
        gateway.close()
        if (output := getattr(gateway, "output", None)) is not None:
            output.join(_EXIT_S)


def _end_process(jvm: subprocess.Popen[bytes]) -> None:
    # It ends with its input.
    if jvm.stdin is not None:
        jvm.stdin.close()
    try:
        jvm.wait(_EXIT_S)
    except BaseException as error:
        jvm.kill()
        jvm.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


@contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """What the JVM is to inherit: pyspark gives it the environment of this process."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
