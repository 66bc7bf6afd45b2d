"""The durable state of a node: opened once, written by one writer, read concurrently."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from postroad.core import validate_node_name
from postroad.core.errors import (
    ConfigError,
    StoreError,
    StoreMismatchError,
    StoreUnavailableError,
    UsageError,
)
from postroad.durable.config import DurableQueuesConfig, decode_config
from postroad.durable.store.backends.backend import DatabaseBackend, StoreConnection, close_quietly
from postroad.durable.store.tables.schema import migrate, read_meta, write_meta
from postroad.durable.store.tables.store_tables import StoreTables, register_process

from .commit_listeners import CommitListeners
from .mutations import FunctionMutation, Mutation
from .savepoints import SavepointTransaction, check_not_in_transaction, outside_transaction
from .worker_threads import DirectThreadRunner, ThreadRunner
from .writer import GroupCommitWriter

logger = logging.getLogger("postroad.durable")

P = ParamSpec("P")
T = TypeVar("T")

NODE = "node"
BRIDGE = "bridge"


class Store:
    """The messages of a node: outbox, queues and dead letters.

    Use one of SqliteStore, PostgresStore and MemoryStore.
    """

    def __init__(
        self,
        backend: DatabaseBackend,
        thread_factory: Callable[[str, int], ThreadRunner] = DirectThreadRunner,
    ) -> None:
        self._backend = backend
        # Creates threads that fit the event loop: their number, and their name.
        self.thread_factory = thread_factory
        self.config = DurableQueuesConfig()
        # Set by open.
        self.id = b""
        self.owner = ""
        # Called with the events of commits; empty again after closing.
        self.commit_listeners = CommitListeners()
        # Claimed queues with their claimants; empty again after closing.
        self.claims: dict[str, str] = {}
        # For reads without an event loop; created by the first.
        self._blocking_reader: StoreConnection | None = None
        self._blocking_read_lock = threading.Lock()
        self._writer: GroupCommitWriter | None = None
        self._tables: StoreTables
        self._reader: StoreConnection
        self._writing: ThreadRunner
        self._reading: ThreadRunner

    # Opening and closing.

    async def open(
        self,
        owner: str | None = None,
        config: DurableQueuesConfig | None = None,
        *,
        role: str = NODE,
        force: bool = False,
    ) -> None:
        """Open the store of a node.

        Args:
            owner: name of the node; its store is made if there is none. None opens what exists.
            config: sizes and times; those of the node that used it last by default.
            role: what this process does with it; one at a time may in each role.
            force: whether to do so although another process may be at it.

        Raises:
            StoreLockedError: another process works on it in that role.
            StoreCorruptedError: it is damaged.
            StoreMismatchError: it is another node's, or of a newer version.
            StoreUnavailableError: it cannot be reached or written.
        """
        if self._writer is not None:
            raise UsageError(f"{self!r} is open already")
        if owner is not None:
            validate_node_name(owner)
        self._writing = self.thread_factory("postroad-store", 1)
        self._reading = self.thread_factory("postroad-store-reader", 1)
        opening = self._writing.run(self._open, owner, config, role, force)
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await self._cancel_open(opening)
            raise
        except BaseException:
            self._shut_down()
            raise
        self._writer = GroupCommitWriter(
            self._backend,
            self._writing,
            self._tables,
            self.commit_listeners,
            self.config,
        )

    async def _cancel_open(self, opening: asyncio.Future[None]) -> None:
        """Close the store after a cancelled `open`."""
        await asyncio.wait((opening,))
        if opening.exception() is None:
            await self._reading.run(close_quietly, self._reader)
            await self._writing.run(self._release)
        self._shut_down()

    def _open(
        self, owner: str | None, config: DurableQueuesConfig | None, role: str, force: bool
    ) -> None:
        if owner is None and not self._backend.exists():
            raise StoreMismatchError(f"store {self._backend} was never used by a node")
        if not force:
            self._backend.lock(role)
        try:
            database = self._backend.connect()
            try:
                self._backend.check(database)
                self._prepare(database, owner, config, role)
                self._tables = StoreTables(database, self.id, self.owner, role, self.config)
                self._check_for_lost_commits()
                self._reader = self._backend.connect_reader()
            except BaseException:
                close_quietly(database)
                raise
        except BaseException:
            self._backend.unlock()
            raise

    def _check_for_lost_commits(self) -> None:
        """Log if the database has lost commits; they cannot be restored here."""
        tables = self._tables
        lost = self._backend.recorded_commits(tables.role) - tables.commits
        if lost > 0:
            logger.error(
                "store %s has lost its last %d commits, which were acknowledged: its log is "
                "damaged, cut or removed, or the file is an older copy; see backup and restore in "
                "the documentation",
                self._backend,
                lost,
            )
            self._backend.record_commits(tables.role, tables.commits)

    def _prepare(
        self,
        database: StoreConnection,
        owner: str | None,
        config: DurableQueuesConfig | None,
        role: str,
    ) -> None:
        """Migrate the tables and check the owner; one process at a time."""
        database.begin()
        try:
            self._backend.lock_schema(database)
            migrate(self._backend, database)
            self.id, self.owner = self._claim(database, owner)
            self.config = _resolve_config(database, config)
            register_process(database, role)
        except BaseException:
            database.rollback()
            raise
        database.commit()

    def _claim(self, database: StoreConnection, owner: str | None) -> tuple[bytes, str]:
        """Return identity and owner of this store; raises for a store of another node."""
        id, recorded_owner = read_meta(database, "store"), read_meta(database, "owner")
        if id is None:
            if owner is None:
                raise StoreMismatchError(f"store {self._backend} was never used by a node")
            id, recorded_owner = os.urandom(16).hex(), owner
            write_meta(database, "store", id)
            write_meta(database, "owner", owner)
        elif owner is not None and recorded_owner != owner:
            raise StoreMismatchError(
                f"store {self._backend} belongs to node {recorded_owner!r}, not to {owner!r}"
            )
        return bytes.fromhex(id), recorded_owner or ""

    async def close(self) -> None:
        """Commit what was submitted, and close the store."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        closing = asyncio.ensure_future(self._close(writer))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            # If closing stopped half way, the store would stay locked.
            await asyncio.wait((closing,))
            raise

    async def _close(self, writer: GroupCommitWriter) -> None:
        await writer.close()
        self.commit_listeners = CommitListeners()
        self.claims = {}
        await self._reading.run(self._close_readers)
        await self._writing.run(self._release)
        self._shut_down()

    def _close_readers(self) -> None:
        close_quietly(self._reader)
        with self._blocking_read_lock:
            self._close_blocking_reader()

    def _release(self) -> None:
        close_quietly(self._tables.database)
        self._backend.unlock()

    def _shut_down(self) -> None:
        self._writing.stop()
        self._reading.stop()

    async def lock(self, role: str) -> None:
        """Acquire a second role for this process; raises StoreLockedError if it is taken."""
        await self._writing.run(self._backend.lock_additional_role, role, self._tables.database)

    # Writing.

    @property
    def column_types(self) -> Mapping[str, str]:
        """The column types of this database for `{id}`, `{blob}` and so on, for other layers."""
        return self._backend.column_types

    @property
    def is_shared(self) -> bool:
        """Whether other programs can write to the database while a node uses it."""
        return self._backend.is_shared

    @property
    def is_open(self) -> bool:
        """Whether it can be read and written."""
        return self._writer is not None

    @property
    def writer(self) -> GroupCommitWriter:
        """The group commit writer; only while the store is open."""
        if self._writer is None:
            raise UsageError(f"{self!r} is not open")
        return self._writer

    @property
    def ended(self) -> asyncio.Future[StoreError]:
        """Resolved with the reason if the store ends for good; only while it is open.

        It ends when the database has another history than this process remembers: a fail-over
        has lost commits, or another process has taken the store over.
        """
        return self.writer.ended

    def submit(self, mutation: Mutation, *, lazy: bool = False) -> None:
        """Submit a mutation, whose `on_complete` gets the result."""
        self.writer.submit(mutation, lazy=lazy)

    async def write(self, function: Callable[[StoreTables], T], size: int = 0) -> T:
        """Change the store by a function, and wait until the change is durable."""
        with outside_transaction(self):
            work = FunctionMutation(function, size)
            await self.writer.wait_for_capacity()
            self.submit(work)
            return await work.done

    async def begin_transaction(self) -> SavepointTransaction:
        """Start a transaction, and wait for its turn."""
        return await self.writer.begin_transaction()

    # Reading.

    async def read(
        self,
        function: Callable[Concatenate[StoreConnection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a query of `queries` on the committed data."""
        writer = self.writer
        writer.check()
        if self._reader is self._tables.database:
            check_not_in_transaction(self)
            async with writer.commit_lock:
                return await self._writing.run(lambda: function(self._reader, *args, **kwargs))
        try:
            return await self._reading.run(lambda: function(self._reader, *args, **kwargs))
        except StoreUnavailableError:
            await self._reading.run(self._reconnect_reader)
            raise

    def read_blocking(
        self,
        function: Callable[Concatenate[StoreConnection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a query in the calling thread, and block until it is done.

        A store in memory has one connection only, so uncommitted data may be seen there.
        """
        with self._blocking_read_lock:
            self.writer.check()
            if self._blocking_reader is None:
                self._blocking_reader = self._backend.connect_reader()
            try:
                return function(self._blocking_reader, *args, **kwargs)
            except StoreUnavailableError:
                self._close_blocking_reader()
                raise

    def connect_reader(self) -> StoreConnection:
        """Open a connection that only reads, also while the store is open elsewhere.

        Raises:
            StoreUnavailableError: it is not there, or cannot be reached.
        """
        if not self._backend.exists():
            raise StoreUnavailableError(f"store {self._backend} does not exist")
        return self._backend.connect_reader()

    def _close_blocking_reader(self) -> None:
        if self._blocking_reader is not None and self._blocking_reader is not self._tables.database:
            close_quietly(self._blocking_reader)
        self._blocking_reader = None

    def _reconnect_reader(self) -> None:
        try:
            reader = self._backend.connect_reader()
        except StoreError as error:
            logger.debug("cannot open a connection for blocking reads: %s", error)
            return
        close_quietly(self._reader)
        self._reader = reader

    # Claims and policies.

    def owns_tables(self, tables: StoreTables) -> bool:
        """Whether these tables belong to this store."""
        return self._writer is not None and tables is self._tables

    def claim(self, queue: str, claimant: str) -> None:
        """Claim a queue for a single consumer.

        Raises:
            UsageError: the queue is claimed already.
        """
        if queue in self.claims:
            raise UsageError(f"queue {queue!r} has {self.claims[queue]} already")
        self.claims[queue] = claimant

    def release(self, queue: str) -> None:
        """Release a queue; nothing happens if it is not claimed."""
        self.claims.pop(queue, None)

    def set_queue_policy(self, policy: Callable[[str, str], bool]) -> None:
        """Set the function that decides whether a sender may create a queue."""
        self._tables.streams.queue_policy = policy

    def __repr__(self) -> str:
        state = "open" if self._writer is not None else "not open"
        return f"<{type(self).__name__} {self._backend} {state}>"


def _resolve_config(
    database: StoreConnection, config: DurableQueuesConfig | None
) -> DurableQueuesConfig:
    """Record the settings of a node, for processes that open its store without settings."""
    if config is not None:
        write_meta(database, "config", msgspec.json.encode(config).decode())
        return config
    remembered = read_meta(database, "config")
    if remembered is None:
        return DurableQueuesConfig()
    try:
        return decode_config(remembered)
    except (msgspec.DecodeError, ConfigError) as error:
        logger.warning("the settings recorded in the store are invalid and ignored: %s", error)
        return DurableQueuesConfig()
