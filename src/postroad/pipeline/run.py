"""One way to run a job: `await run(job)` in this process, `await run(job, on=Spark())` on Spark."""

from __future__ import annotations

import asyncio
import os
import pkgutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from postroad.core.errors import ConfigError, StoreLockedError, UsageError
from postroad.durable import DurableQueues, MemoryStore, SqliteStore, Store, store_from_url
from postroad.pipeline.connectors import InputConnector, OutputConnector, make_input, make_output
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.progress import JobProgress, ProgressSampler, TaskCounts
from postroad.pipeline.job import Job, TaskType
from postroad.pipeline.job_files import load_job
from postroad.pipeline.local_runner import LocalRunner

if TYPE_CHECKING:
    from postroad.pipeline.spark.config import SparkConfig

PROGRESS_S = 1.0
"""How often progress is reported."""

# Where the layers above find the queues of a node. They are not imported from here: a job without
# queues does without them.
_QUEUE_HOST = "postroad.admin.job_queues:run_with_queues"
_QUEUE = "queue"
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"

OnProgress: TypeAlias = Callable[[JobProgress], None]


class Local(msgspec.Struct, frozen=True):
    """Run a job in this process, in plain Python."""


class Spark:
    """Run a job on Spark.

        await run("clearing.toml", on=Spark())
        await run("clearing.toml", on=Spark("spark://host:7077"))

    Args:
        master: a Spark master; all cores of this machine by default.
        conf: properties of Spark.
        partitions: parts of a batch; as many as the executors have cores by default.
        bind: the address where executors reach this process, as `host:port`.
        session: a session that runs already, instead of one with these settings.
        is_batch: whether all that there is makes one batch, without a checkpoint; for inputs that
            have an end.
        settings: further fields of `SparkConfig`, such as `driver_memory`.
    """

    def __init__(
        self,
        master: str | None = None,
        *,
        conf: Mapping[str, str] | None = None,
        partitions: int | None = None,
        bind: str | None = None,
        session: Any = None,
        is_batch: bool = False,
        **settings: Any,
    ) -> None:
        given: dict[str, Any] = {"master": master, "conf": None if conf is None else dict(conf)}
        given |= {"partitions": partitions, **settings}
        self._settings = {name: value for name, value in given.items() if value is not None}
        self.bind = bind
        self.session = session
        self.is_batch = is_batch

    @property
    def has_settings(self) -> bool:
        """Whether anything is to be other than by default."""
        return bool(self._settings) or self.session is not None or self.bind is not None

    def find_checkpoint(self, job: str) -> str | None:
        """Where Spark's own setting says that a job has its checkpoint, if it says so."""
        location = self._settings.get("conf", {}).get(_CHECKPOINTS)
        return f"{location.rstrip('/')}/{job}.spark" if location else None

    def config(self, app_name: str) -> SparkConfig:
        """How Spark is started for a job; raises ConfigError if a setting is wrong."""
        from postroad.pipeline.spark.config import SparkConfig
        from postroad.pipeline.spark.session import submitted_properties

        # Functions are looked for where this program looks for them first.
        usual: dict[str, Any] = {"app_name": app_name, "python_path": _import_directories()}
        submitted = submitted_properties()
        if submitted:
            usual["app_name"] = submitted.pop("spark.app.name", app_name)
            usual["master"] = submitted.pop("spark.master")
        settings = usual | self._settings
        try:
            return SparkConfig(**settings | {"conf": submitted | settings.get("conf", {})})
        except TypeError as error:
            raise ConfigError(f"Spark() got an unknown setting: {error}") from None

    def __repr__(self) -> str:
        return f"Spark({', '.join(f'{name}={value!r}' for name, value in self._settings.items())})"


def _import_directories() -> tuple[str, ...]:
    script = sys.path[0] if sys.path and Path(sys.path[0] or ".").is_dir() else ""
    return tuple(dict.fromkeys((str(Path(script).resolve()), str(Path.cwd()))))


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of a job did."""

    job: str
    delivered: int = 0
    """Segments that inputs gave, each for the first time."""
    acked: int = 0
    """Segments that are done with, and everything made from them."""
    failed: int = 0
    """Failed attempts."""
    retried: int = 0
    """Segments that were delivered again."""
    batches: int = 0
    dead: int = 0
    """Dead messages of the job, those of earlier runs included."""
    restarts: int = 0
    """How often Spark failed and was started again."""
    tasks: dict[str, TaskCounts] = {}
    """By the name of the task."""
    late: dict[str, int] = {}
    """Segments that came too late for their window, by the name of the window."""


class HasQueues(Protocol):
    """A running node, as far as a job needs it."""

    @property
    def queues(self) -> DurableQueues:
        """Its durable queues, and the store that holds them."""


class Runner(Protocol):
    """What runs a job."""

    coordinator: JobCoordinator

    async def run(self) -> None:
        """Run until the job is drained."""


async def run(
    job: Job | str | Path,
    *,
    on: Local | Spark | None = None,
    store: Store | str | Path | None = None,
    node: HasQueues | None = None,
    config: object = None,
    checkpoint: str | Path | None = None,
    inputs: Mapping[str, InputConnector] | None = None,
    outputs: Mapping[str, OutputConnector] | None = None,
    on_progress: OnProgress | None = None,
) -> JobResult:
    """Run a job until its bounded inputs are drained; for ever if one of them has no end.

        result = await run("clearing.toml", on=Spark())
        print(result.acked, "acknowledged,", result.dead, "dead")

    Stopped and run again with the same store, a job goes on where it was, on Spark or not.

    Args:
        job: a job, or the file of one.
        on: where it runs; in this process by default.
        store: where its account is kept: a path, `postgresql://...` or a store. By default
            `<job>.db` beside the job's file; in memory for a job that has none.
        node: a running node, whose queues the job reads and sends to, and whose store keeps the
            account.
        config: of the node whose queues the job names, if no running node is given: a
            `postroad.toml` or a `NodeConfig`; that of the current directory by default.
        checkpoint: a directory of this job alone, where Spark keeps how far it is, or a URL such
            as `hdfs://host/path`. By default `<job>.spark` at Spark's own setting
            `spark.sql.streaming.checkpointLocation`, or beside the job's file or store; without
            any of them, all that there is is one batch.
        inputs: connectors to use instead of what the job says, by the name of their task.
        outputs: likewise.
        on_progress: called about once a second, and at the end.

    Raises:
        ConfigError: the job has mistakes, or a function, file or queue cannot be had.
        StoreError: the store cannot be used.
    """
    path = None if isinstance(job, Job) else Path(job)
    loaded = job if isinstance(job, Job) else load_job(job)
    ways = JobRun(loaded, on or Local(), inputs or {}, outputs or {}, on_progress)
    if checkpoint is None and isinstance(on, Spark):
        checkpoint = on.find_checkpoint(loaded.name)
    if node is not None:
        if store is not None and ways.queue_tasks:
            raise UsageError(
                f"job {loaded.name!r} has queues, so its progress is in the store of the node; "
                "leave out store="
            )
        directory = getattr(getattr(node, "config", None), "data", None)
        return await ways.run_in(
            node.queues,
            node.queues.store if store is None else _to_store(store),
            checkpoint or _checkpoint(loaded, path, directory),
        )
    if ways.queue_tasks and store is None:
        run_with_queues = pkgutil.resolve_name(_QUEUE_HOST)
        result: JobResult = await run_with_queues(ways, path, config, checkpoint)
        return result
    if store is None:
        kept: Store = MemoryStore() if path is None else SqliteStore(account_path(path, loaded))
    else:
        kept = _to_store(store)
    beside = path or _path_of(store)
    # A store of a node is there already, and has its name; any other is the job's.
    owner = None if ways.queue_tasks else loaded.name
    async with opened(kept, owner):
        return await ways.run_in(kept, kept, checkpoint or _checkpoint(loaded, beside, None))


def has_queues(job: Job) -> bool:
    """Whether a job reads or sends to queues of a node, in whose store its account then is."""
    return any(task.connector == _QUEUE for task in job.catalog)


def account_path(path: Path, job: Job) -> Path:
    """The file that keeps the account of a job, unless another store is named."""
    return path.with_name(f"{job.name}.db")


def _path_of(store: Store | str | Path | None) -> Path | None:
    is_url = isinstance(store, str) and "://" in store
    return Path(store) if isinstance(store, str | Path) and not is_url else None


def _to_store(store: Store | str | Path) -> Store:
    return store if isinstance(store, Store) else store_from_url(str(store))


def _checkpoint(job: Job, beside: Path | None, directory: Path | None) -> Path | None:
    name = f"{job.name}.spark"
    if directory is not None:
        return (directory / name).absolute()
    return None if beside is None else beside.with_name(name).absolute()


@asynccontextmanager
async def opened(store: Store, owner: str | None) -> AsyncIterator[Store]:
    """A store, open; closed at the end unless it was open before."""
    if store.is_open:
        yield store
        return
    try:
        await store.open(owner)
    except StoreLockedError as error:
        if owner is None:
            raise
        raise StoreLockedError(
            f"job {owner!r} runs already, or its store is in use: {error}"
        ) from None
    try:
        yield store
    finally:
        await store.close()


class JobRun:
    """A valid job and how it runs; connectors that are given replace those of the job."""

    def __init__(
        self,
        job: Job,
        on: Local | Spark,
        inputs: Mapping[str, InputConnector] | None = None,
        outputs: Mapping[str, OutputConnector] | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.job = job
        self.on = on
        self._inputs = inputs or {}
        self._outputs = outputs or {}
        self.on_progress = on_progress
        self._check_names("inputs", self._inputs, TaskType.INPUT)
        self._check_names("outputs", self._outputs, TaskType.OUTPUT)

    def _check_names(self, what: str, given: Mapping[str, object], type: TaskType) -> None:
        known = [task.name for task in self.job.catalog if task.type is type]
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"{what} has {name!r}, which is no task of job {self.job.name!r}; "
                    f"expected one of {', '.join(known)}"
                )

    @property
    def queue_tasks(self) -> list[str]:
        """The tasks that read or send to queues of a node."""
        given = {*self._inputs, *self._outputs}
        return [
            task.name
            for task in self.job.catalog
            if task.connector == _QUEUE and task.name not in given
        ]

    @property
    def has_own_connectors(self) -> bool:
        """Whether there are connectors that the job does not say."""
        return bool(self._inputs or self._outputs)

    async def run_in(
        self, queues: DurableQueues | Store, store: Store, checkpoint: str | Path | None
    ) -> JobResult:
        """Run the job with connectors made from it alone.

        `queues` are those of a node, or its open store; `store` keeps the progress of the job.
        """
        runner = self._make_runner(queues, store, checkpoint)
        async with opened(store, self.job.name):
            await self._run_measured(runner)
            return await self._result(runner)

    def _make_runner(
        self, queues: DurableQueues | Store, store: Store, checkpoint: str | Path | None
    ) -> Runner:
        tasks = self.job.catalog
        inputs = dict(self._inputs) | {
            task.name: make_input(task, queues)
            for task in tasks
            if task.type is TaskType.INPUT and task.name not in self._inputs
        }
        outputs = dict(self._outputs) | {
            task.name: make_output(task, queues)
            for task in tasks
            if task.type is TaskType.OUTPUT and task.name not in self._outputs
        }
        if isinstance(self.on, Local):
            return LocalRunner(self.job, inputs, outputs, store)
        from postroad.pipeline.spark import SparkRunner

        further = {} if self.on.bind is None else {"bind": self.on.bind}
        return SparkRunner(
            self.job,
            inputs,
            outputs,
            store,
            None if self.on.is_batch else checkpoint,
            self.on.config(self.job.name),
            session=self.on.session,
            **further,
        )

    async def _run_measured(self, runner: Runner) -> None:
        if self.on_progress is None:
            await runner.run()
            return
        sampler = ProgressSampler(self.job.name, os.getpid(), runner.coordinator)
        measuring = asyncio.ensure_future(_measure(sampler, runner, self.on_progress))
        try:
            await runner.run()
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)
        self.on_progress(await _sample(sampler, runner))

    async def _result(self, runner: Runner) -> JobResult:
        counts = runner.coordinator.counts
        return JobResult(
            job=self.job.name,
            delivered=counts.delivered,
            acked=counts.acked,
            failed=counts.failed,
            retried=counts.replayed,
            batches=counts.batches,
            dead=(await runner.coordinator.status()).dead,
            restarts=getattr(runner, "restarts", 0),
            tasks=counts.tasks,
            late=await runner.coordinator.late(),
        )


async def _measure(sampler: ProgressSampler, runner: Runner, on_progress: OnProgress) -> None:
    while True:
        if runner.coordinator.is_open:
            on_progress(await _sample(sampler, runner))
        await asyncio.sleep(PROGRESS_S)


async def _sample(sampler: ProgressSampler, runner: Runner) -> JobProgress:
    # Plain Python has neither of the two.
    return await sampler.look(getattr(runner, "restarts", 0), getattr(runner, "ui_url", None))
