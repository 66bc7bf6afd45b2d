"""The durable memory of a node: opened once, written by one writer, read beside it."""

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

from .audience import Audience
from .database import Backend, Database, close_quietly
from .ledger import Ledger, sign_in
from .schema import migrate, read_meta, write_meta
from .threads import QuickThread, Thread
from .turn import Turn, check_not_inside, outside
from .units import Unit, Work
from .writer import Writer

logger = logging.getLogger("postroad.durable")

P = ParamSpec("P")
T = TypeVar("T")

NODE = "node"
BRIDGE = "bridge"


class Store:
    """Keeps a node's mail: what waits to be sent, what was received, what died.

    Use one of SqliteStore, PostgresStore and MemoryStore.
    """

    def __init__(
        self, backend: Backend, make_threads: Callable[[str, int], Thread] = QuickThread
    ) -> None:
        self._backend = backend
        # Makes threads that fit the event loop: so many, of that name.
        self.make_threads = make_threads
        self.config = DurableQueuesConfig()
        # Set by open.
        self.id = b""
        self.owner = ""
        # Those who are told what commits bring; empty again after each closing.
        self.audience = Audience()
        # Queues that somebody takes from, and who does; empty again likewise.
        self.claims: dict[str, str] = {}
        # For those who read without an event loop: made when one first does.
        self._beside: Database | None = None
        self._reading_beside = threading.Lock()
        self._writer: Writer | None = None
        self._ledger: Ledger
        self._reader: Database
        self._writing: Thread
        self._reading: Thread

    # Life.

    async def open(
        self,
        owner: str | None = None,
        config: DurableQueuesConfig | None = None,
        *,
        role: str = NODE,
        take_over: bool = False,
    ) -> None:
        """Open the store of a node.

        Args:
            owner: name of the node; its store is made if there is none. None opens what exists.
            config: sizes and times; those of the node that used it last by default.
            role: what this process does with it; one at a time may in each role.
            take_over: whether to do so although another process may be at it.

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
        self._writing = self.make_threads("postroad-store", 1)
        self._reading = self.make_threads("postroad-store-reader", 1)
        opening = self._writing.run(self._open, owner, config, role, take_over)
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await self._undo(opening)
            raise
        except BaseException:
            self._shut_down()
            raise
        self._writer = Writer(
            self._backend,
            self._writing,
            self._ledger,
            self.audience,
            self.config,
        )

    async def _undo(self, opening: asyncio.Future[None]) -> None:
        """Whoever wanted the store gave up while it was being opened."""
        await asyncio.wait((opening,))
        if opening.exception() is None:
            await self._reading.run(close_quietly, self._reader)
            await self._writing.run(self._release)
        self._shut_down()

    def _open(
        self, owner: str | None, config: DurableQueuesConfig | None, role: str, take_over: bool
    ) -> None:
        if owner is None and not self._backend.exists():
            raise StoreMismatchError(f"store {self._backend} was never used by a node")
        if not take_over:
            self._backend.lock(role)
        try:
            database = self._backend.connect()
            try:
                self._backend.check(database)
                self._prepare(database, owner, config, role)
                self._ledger = Ledger(database, self.id, self.owner, role, self.config)
                self._compare_with_note()
                self._reader = self._backend.connect_reader()
            except BaseException:
                close_quietly(database)
                raise
        except BaseException:
            self._backend.unlock()
            raise

    def _compare_with_note(self) -> None:
        """Tell if the database has lost commits; there is no way to get them back here."""
        ledger = self._ledger
        lost = self._backend.noted(ledger.role) - ledger.commits
        if lost > 0:
            logger.error(
                "store %s has lost its last %d commits, which were acknowledged: its log is "
                "damaged, cut or removed, or the file is an older copy; see backup and restore in "
                "the documentation",
                self._backend,
                lost,
            )
            self._backend.note(ledger.role, ledger.commits)

    def _prepare(
        self, database: Database, owner: str | None, config: DurableQueuesConfig | None, role: str
    ) -> None:
        """Bring the tables up to date, and see whose they are; one process at a time."""
        database.begin()
        try:
            self._backend.exclude_others(database)
            migrate(self._backend, database)
            self.id, self.owner = self._claim(database, owner)
            self.config = _configure(database, config)
            sign_in(database, role)
        except BaseException:
            database.rollback()
            raise
        database.commit()

    def _claim(self, database: Database, owner: str | None) -> tuple[bytes, str]:
        """The identity and owner of this store; refuses a store of another node."""
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
        """Commit what was submitted, and let the store go."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        closing = asyncio.ensure_future(self._close(writer))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            # Half closed it would stay locked for ever.
            await asyncio.wait((closing,))
            raise

    async def _close(self, writer: Writer) -> None:
        await writer.close()
        self.audience = Audience()
        self.claims = {}
        await self._reading.run(self._close_readers)
        await self._writing.run(self._release)
        self._shut_down()

    def _close_readers(self) -> None:
        close_quietly(self._reader)
        with self._reading_beside:
            self._close_beside()

    def _release(self) -> None:
        close_quietly(self._ledger.database)
        self._backend.unlock()

    def _shut_down(self) -> None:
        self._writing.stop()
        self._reading.stop()

    async def lock(self, role: str) -> None:
        """Take a second role in this process; raises StoreLockedError if another process has it."""
        await self._writing.run(self._backend.lock_also, role, self._ledger.database)

    # Writing.

    @property
    def types(self) -> Mapping[str, str]:
        """What words like `{id}` and `{blob}` are called here, for tables of other layers."""
        return self._backend.types

    @property
    def is_open(self) -> bool:
        """Whether it can be read and written."""
        return self._writer is not None

    @property
    def writer(self) -> Writer:
        """What commits; only while the store is open."""
        if self._writer is None:
            raise UsageError(f"{self!r} is not open")
        return self._writer

    @property
    def ended(self) -> asyncio.Future[StoreError]:
        """Resolved if the store ends for good, with the reason; only while it is open.

        That is so when the database has another history than this process remembers: a fail-over
        has lost commits, or another process has taken the store over.
        """
        return self.writer.ended

    def submit(self, unit: Unit, *, lazy: bool = False) -> None:
        """Have a unit committed; it hears of it by itself."""
        self.writer.submit(unit, lazy=lazy)

    async def write(self, function: Callable[[Ledger], T], size: int = 0) -> T:
        """Change the store with a function, and wait until that is durable."""
        with outside(self):
            work = Work(function, size)
            await self.writer.wait_for_room()
            self.submit(work)
            return await work.done

    async def begin(self) -> Turn:
        """Wait for a transaction of one's own."""
        return await self.writer.begin()

    # Reading.

    async def read(
        self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a query of `queries` on what is committed."""
        writer = self.writer
        writer.check()
        if self._reader is self._ledger.database:
            check_not_inside(self)
            async with writer.round:
                return await self._writing.run(lambda: function(self._reader, *args, **kwargs))
        try:
            return await self._reading.run(lambda: function(self._reader, *args, **kwargs))
        except StoreUnavailableError:
            await self._reading.run(self._reconnect_reader)
            raise

    def read_now(
        self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same in the thread that calls, whichever it is: it waits until it is read.

        A store in memory has one connection only, so there what is not committed may be seen.
        """
        with self._reading_beside:
            self.writer.check()
            if self._beside is None:
                self._beside = self._backend.connect_reader()
            try:
                return function(self._beside, *args, **kwargs)
            except StoreUnavailableError:
                self._close_beside()
                raise

    def connect_reader(self) -> Database:
        """Connect to read only, also while the store is not open here or open elsewhere.

        Raises:
            StoreUnavailableError: it is not there, or cannot be reached.
        """
        if not self._backend.exists():
            raise StoreUnavailableError(f"store {self._backend} is not there")
        return self._backend.connect_reader()

    def _close_beside(self) -> None:
        if self._beside is not None and self._beside is not self._ledger.database:
            close_quietly(self._beside)
        self._beside = None

    def _reconnect_reader(self) -> None:
        try:
            reader = self._backend.connect_reader()
        except StoreError as error:
            logger.debug("no connection to read with: %s", error)
            return
        close_quietly(self._reader)
        self._reader = reader

    # Who uses it.

    def owns(self, ledger: Ledger) -> bool:
        """Whether what a ledger writes is in this store."""
        return self._writer is not None and ledger is self._ledger

    def claim(self, queue: str, who: str) -> None:
        """Be the only one who takes letters out of a queue.

        Raises:
            UsageError: somebody does already.
        """
        if queue in self.claims:
            raise UsageError(f"queue {queue!r} has {self.claims[queue]} already")
        self.claims[queue] = who

    def release(self, queue: str) -> None:
        """Let others take from a queue; they may do so already."""
        self.claims.pop(queue, None)

    def use_rule(self, rule: Callable[[str, str], bool]) -> None:
        """Have a function decide whether a sender may open a queue."""
        self._ledger.streams.may_open = rule

    def __repr__(self) -> str:
        state = "open" if self._writer is not None else "not open"
        return f"<{type(self).__name__} {self._backend} {state}>"


def _configure(database: Database, config: DurableQueuesConfig | None) -> DurableQueuesConfig:
    """Remember what a node wants, for others who open its store without saying anything."""
    if config is not None:
        write_meta(database, "config", msgspec.json.encode(config).decode())
        return config
    remembered = read_meta(database, "config")
    if remembered is None:
        return DurableQueuesConfig()
    try:
        return decode_config(remembered)
    except (msgspec.DecodeError, ConfigError) as error:
        logger.warning("the store's own settings are not used: %s", error)
        return DurableQueuesConfig()
