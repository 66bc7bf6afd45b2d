"""Whether a cluster still works for a session: Spark itself waits for a lost master for ever.

A standalone application goes on with the executors that it has when its master dies. A master that
is started anew does not know the application, has its executors killed, and never gives it others:
from then on nothing happens and nobody says so. Only another session helps.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.pipeline.spark.addresses import accepts, master_addresses
from postroad.pipeline.spark.session import stop_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from postroad.core import Address

logger = logging.getLogger("postroad.pipeline")

LOOK_S = 5.0
"""How often a session is looked at."""
LOST_S = 20.0
"""So long a session may be without executors and without a master that knows it."""
WAITING_S = 40.0
"""So long a cluster may let a job wait for executors before that is said."""
_ASK_S = 5
_WAIT_S = 2.0
_STOP_S = 10.0


class Master(Enum):
    """What the master of a standalone cluster has to say about an application."""

    KNOWS = "knows it"
    FORGOT = "answers, and does not know the application: it was started anew"
    SILENT = "does not answer"
    NONE = "is not a standalone one"


class Standing(msgspec.Struct, frozen=True):
    """How a session is doing."""

    is_stopped: bool
    executors: int
    is_busy: bool
    """Whether there is something for executors to do."""
    master: Master


class Verdict(msgspec.Struct, frozen=True):
    """What follows from how a session is doing."""

    text: str = ""
    """What is wrong, if anything is."""
    is_lost: bool = False
    """Whether only another session helps."""


class Judge:
    """Decides when a session is lost; told how it is doing, and when."""

    def __init__(self, url: str) -> None:
        self._url = url
        # Since when without executors, and since when not known to the master.
        self._idle_since: float | None = None
        self._unknown_since: float | None = None

    def judge(self, standing: Standing, now: float) -> Verdict:
        """What to make of it."""
        if standing.is_stopped:
            return Verdict(f"Spark has given up its connection to the cluster {self._url}", True)
        idle_s = self._idle_for(standing, now)
        unknown_s = self._unknown_for(standing, now)
        match standing.master:
            case Master.FORGOT if unknown_s >= LOST_S or not standing.executors:
                return Verdict(self._tell(standing), True)
            case Master.SILENT if idle_s >= LOST_S:
                return Verdict(self._tell(standing), True)
            case Master.SILENT if unknown_s > 0:
                goes_on = "the job goes on with the executors that it has, and gets no others"
                return Verdict(f"{self._tell(standing)}; {goes_on}")
            case Master.KNOWS | Master.NONE if idle_s >= WAITING_S and standing.is_busy:
                return Verdict(
                    f"the cluster {self._url} has given the job no executor for {idle_s:.0f} s: it "
                    "has no worker, or none with so much memory and cores free; the job waits"
                )
        return Verdict()

    def _tell(self, standing: Standing) -> str:
        return (
            f"the Spark master at {self._url} {standing.master.value}; the job has "
            f"{standing.executors} executors"
        )

    def _idle_for(self, standing: Standing, now: float) -> float:
        if standing.executors:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        return 0.0 if self._idle_since is None else now - self._idle_since

    def _unknown_for(self, standing: Standing, now: float) -> float:
        if standing.master in (Master.KNOWS, Master.NONE):
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        return 0.0 if self._unknown_since is None else now - self._unknown_since


class Watch:
    """Looks after a session while its queries run.

    Args:
        session: of a cluster; others are not looked after.
        name: of the job.
        may_stop: whether the session may be stopped when it is lost.
    """

    def __init__(self, session: SparkSession, name: str, *, may_stop: bool) -> None:
        self._session = session
        self._name = name
        self._may_stop = may_stop
        context = getattr(session, "sparkContext", None) if _is_classic(session) else None
        self._context: Any = context
        self._url = "" if context is None else context.master
        self.is_lost = False
        """Whether the session was given up."""

    async def run(self, queries: Awaitable[BaseException | None]) -> BaseException | None:
        """Await queries, and return what they do; if the session is lost, end them and it."""
        running = asyncio.ensure_future(queries)
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return await running
            self.is_lost = True
            running.cancel()
            # A query that is stopped first does not complain about the end of its session.
            await asyncio.wait({running}, timeout=_STOP_S)
            await asyncio.to_thread(stop_spark, self._session)
            return ConnectionError(f"the cluster {self._url} is lost")
        finally:
            running.cancel()
            watching.cancel()
            await asyncio.gather(running, watching, return_exceptions=True)

    async def _watch(self) -> None:
        """Return when the session is lost."""
        judge = Judge(self._url)
        previous = Verdict()
        while True:
            await asyncio.sleep(LOOK_S)
            if self._context is None or self._url.partition("[")[0] == "local":
                continue
            try:
                standing = await asyncio.to_thread(look, self._context)
            except Exception:
                # Of several kinds, from py4j, sockets or Java: the JVM is gone, and queries fail.
                logger.debug("the session of job %r cannot be looked at", self._name, exc_info=True)
                continue
            verdict = judge.judge(standing, time.monotonic())
            if verdict.text and (not previous.text or verdict.is_lost > previous.is_lost):
                logger.warning("job %r: %s", self._name, verdict.text)
            if previous.text and not verdict.text:
                logger.warning("job %r: the cluster %s works again", self._name, self._url)
            previous = verdict
            if verdict.is_lost and self._may_stop:
                return


def _is_classic(session: SparkSession) -> bool:
    """Whether the driver is a JVM of ours: through Spark Connect, the server looks after it."""
    return hasattr(session, "_jsparkSession")


def look(context: Any) -> Standing:
    """See how a session is doing; blocks for some seconds at most."""
    java: Any = context._jsc.sc()
    if java.isStopped():
        return Standing(True, 0, False, Master.NONE)
    # The driver is among those who have memory for blocks.
    executors = java.getExecutorMemoryStatus().size() - 1
    is_busy = len(context.statusTracker().getActiveStageIds()) > 0
    return Standing(False, executors, is_busy, _ask_masters(context, java))


def _ask_masters(context: Any, java: Any) -> Master:
    if not context.master.startswith("spark://"):
        return Master.NONE
    answers = [_ask_master(context, java, it) for it in master_addresses(context.master)]
    # Of several masters one leads; the others know nothing.
    return next((it for it in (Master.KNOWS, Master.FORGOT) if it in answers), Master.SILENT)


def _ask_master(context: Any, java: Any, address: Address) -> Master:
    """Ask as the master's own web pages do, in Spark's protocol, encrypted if that is."""
    if not accepts(address):
        return Master.SILENT
    jvm = context._jvm
    spark, seconds = jvm.org.apache.spark, jvm.java.util.concurrent.TimeUnit.SECONDS
    try:
        timeout = spark.rpc.RpcTimeout(
            jvm.scala.concurrent.duration.FiniteDuration(_ASK_S, seconds), "postroad"
        )
        place = spark.rpc.RpcAddress(address.host, address.port)
        master = java.schedulerBackend().rpcEnv().setupEndpointRef(place, "Master")
        question = getattr(getattr(spark.deploy, "DeployMessages$RequestMasterState$"), "MODULE$")
        state = master.askSync(question, timeout, jvm.scala.reflect.ClassTag.Any())
        if state.status().toString() == "STANDBY":
            return Master.SILENT
        known = [application.id() for application in state.activeApps()]
    except Exception:
        logger.debug("the master at %s does not answer", address, exc_info=True)
        return Master.SILENT
    return Master.KNOWS if context.applicationId in known else Master.FORGOT


async def wait_for_master(url: str) -> None:
    """Wait until one of the masters of a standalone cluster accepts connections."""
    if not url.startswith("spark://"):
        return
    while True:
        for address in master_addresses(url):
            if await asyncio.to_thread(accepts, address):
                return
        await asyncio.sleep(_WAIT_S)


_TEXT_MAX = 500
# The last line of a traceback in a worker.
_OWN_ERROR = re.compile(r"[\w.]+(Error|Exception|Failure): ")
# What came of a batch, in the words of below, in the middle of what Spark makes of it.
_BATCH_FAILED = re.compile(r"\bBatchFailed: (.+)")
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


def find_missing_module(text: str) -> str | None:
    """The module that a worker of Spark could not import, if that is what failed."""
    missing = _MISSING_MODULE.search(text)
    return None if missing is None else missing[1]


def summarize_failure(failure: BaseException) -> str:
    """What matters of what Spark says, which goes on for pages."""
    text = str(failure)
    if (missing := _MISSING_MODULE.search(text)) is not None:
        return missing[0]
    if (failed := _BATCH_FAILED.search(text)) is not None:
        return failed[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if _OWN_ERROR.match(line)]
    return (own[-1] if own else lines[0] if lines else repr(failure))[:_TEXT_MAX]
