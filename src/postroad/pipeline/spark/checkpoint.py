"""Whose checkpoint it is: Spark's own files do not tell."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.core.errors import ConfigError
from postroad.durable.store import Store
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.pipeline.coordinator.job_store import JobStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "postroad.json"
_SPARK = "spark"
_STAGED = "staged"
_WINDOW_FILES = "window-files"
_WINDOW_STATE = "window-state"
# Under this key the state of an input that Spark reads has the run.
_RUN = "run"


class _CheckpointOwner(msgspec.Struct):
    job: str
    run: str
    store: str = ""
    """The id of the job's store; empty in what older versions wrote."""


class Checkpoint:
    """Where Spark notes how far a job is.

    Args:
        location: a directory of this machine, or a URL of one in any file system that Spark
            knows, such as `hdfs://host/path`.
    """

    def __init__(self, location: str | Path) -> None:
        self._url = str(location).rstrip("/")
        self.is_remote = "://" in self._url
        """Whether Spark alone can reach it."""
        if not self.is_remote:
            self._url = str(Path(location).absolute())
        self.is_on_disk = not self.is_remote or self._url.startswith("file:")
        """Whether it is a directory, of this machine or of several that share it."""

    @property
    def marker(self) -> str | None:
        """The path of a file in it that is there from the start; None if it is on no disk."""
        return f"{self._url.removeprefix('file://')}/{_FILE}" if self.is_on_disk else None

    @property
    def spark_files(self) -> str:
        """Where in it Spark keeps its own."""
        return f"{self._url}/{_SPARK}"

    @property
    def staged_files(self) -> str:
        """Where in it Spark's writers leave what is not published."""
        return f"{self._url}/{_STAGED}"

    @property
    def window_files(self) -> Path:
        """Where in it the batches leave what they add to windows."""
        return Path(self._url, _WINDOW_FILES)

    @property
    def window_state(self) -> str:
        """Where in it Spark keeps the contents of windows."""
        return f"{self._url}/{_WINDOW_STATE}"

    def open(self, job: str, store: str, session: SparkSession | None = None) -> str:
        """Make the directory, or find it again; returns the name of its run.

        A run ends with the files that Spark has there: without them Spark counts from 0 again.

        Args:
            job: the job's name.
            store: the id of the job's store, which has the other half of what is to be known.
            session: reaches a remote one.

        Raises:
            ConfigError: it is another job's, or of another store, or not ours at all.
        """
        files = _RemoteFiles(session, self._url) if self.is_remote else _LocalFiles(self._url)
        content = files.read(_FILE)
        if content is None:
            if files.has_any():
                raise ConfigError(f"{self._url} is no checkpoint of a job, and not empty")
            return _mark(files, job, store)
        try:
            owner = msgspec.json.decode(content, type=_CheckpointOwner)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._url}/{_FILE} is damaged: {error}") from None
        if owner.job != job:
            raise ConfigError(
                f"{self._url} is the checkpoint of the job {owner.job!r}, not of {job!r}"
            )
        if not files.has(_SPARK):
            return _mark(files, job, store)
        if owner.store and owner.store != store:
            raise ConfigError(
                f"the checkpoint {self._url} was made with another store of the job {job!r} (id "
                f"{owner.store}, now {store}), which was deleted or replaced: bring that store "
                "back, or delete the checkpoint too, and the job starts from the beginning"
            )
        return owner.run if owner.store else _mark(files, job, store, owner.run)


async def claim_inputs(store: Store, job: str, run: str, inputs: Sequence[str]) -> None:
    """Note that how far Spark's own readers are is in the checkpoint of a run, and only there.

    Raises:
        ConfigError: it is in another one, and they would read everything a second time.
    """

    def claim(ledger: StoreTables) -> None:
        records = JobStore(ledger.database, job)
        for name in inputs:
            before = records.input_state(name).get(_RUN, run)
            if before != run and (batch := records.last_committed_batch(before)) >= 0:
                raise ConfigError(
                    f"how far Spark has read input {name!r} of job {job!r} is in the checkpoint of "
                    f"run {before}, up to its batch {batch}, and this is that of run {run}: bring "
                    "the other back, or delete the job's store too, and everything is read again"
                )
            records.write_input_state(name, {_RUN: run})

    await store.write(claim)


class _LocalFiles:
    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> bytes | None:
        path = self._directory / name
        return path.read_bytes() if path.exists() else None

    def has(self, name: str) -> bool:
        return (self._directory / name).exists()

    def has_any(self) -> bool:
        return any(self._directory.iterdir())

    def write(self, name: str, content: bytes) -> None:
        temporary = self._directory / f"{name}.new"
        with temporary.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(self._directory / name)


class _RemoteFiles:
    """The same by Hadoop's file systems, which are in the JVM."""

    def __init__(self, session: SparkSession | None, url: str) -> None:
        self._jvm: Any = getattr(session, "_jvm", None)
        if session is None or self._jvm is None:
            raise ConfigError(
                f"the checkpoint {url} cannot be reached through Spark Connect: give a directory "
                "that this machine and the server share"
            )
        self._directory = self._path(url)
        try:
            conf = session.sparkContext._jsc.hadoopConfiguration()
            self._files: Any = self._directory.getFileSystem(conf)
            self._files.mkdirs(self._directory)
        except Exception as error:
            # Of any kind that a driver of a file system has, wrapped by py4j.
            reason = str(getattr(error, "java_exception", error)).partition("\n")[0]
            raise ConfigError(f"the checkpoint {url} cannot be made: {reason}") from error

    def _path(self, *parts: object) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(*parts)

    def read(self, name: str) -> bytes | None:
        path = self._path(self._directory, name)
        if not self._files.exists(path):
            return None
        opened = self._files.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(opened))
        finally:
            opened.close()

    def has(self, name: str) -> bool:
        return bool(self._files.exists(self._path(self._directory, name)))

    def has_any(self) -> bool:
        return len(self._files.listStatus(self._directory)) > 0

    def write(self, name: str, content: bytes) -> None:
        # Renaming replaces nothing in most of these file systems, and is no single step in some.
        opened = self._files.create(self._path(self._directory, name), True)
        try:
            opened.write(content)
        finally:
            opened.close()


def _mark(files: _LocalFiles | _RemoteFiles, job: str, store: str, run: str = "") -> str:
    run = run or secrets.token_hex(8)
    files.write(_FILE, msgspec.json.encode(_CheckpointOwner(job, run, store)))
    return run
