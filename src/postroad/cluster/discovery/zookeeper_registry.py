"""Registry in ZooKeeper: one ephemeral znode per name below a path, all of them watched.

A znode ends with the session of its owner. While ZooKeeper is unreachable, no entry is removed, and
a znode that cannot be decoded keeps the entry that was read before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import msgspec

from postroad.cluster.discovery.background import (
    RETRY_MAX_S,
    DiscoveryReporter,
    retry_delay_s,
    validate_seconds,
)
from postroad.core import validate_cluster_name
from postroad.core.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from postroad.cluster.discovery.zookeeper_session import Znode, ZooKeeperSession


def registry_path(root: str, cluster: str, kind: str) -> str:
    """Return the path of a registry; raises ConfigError if the root is not a path."""
    top, *nodes = root.rstrip("/").split("/")
    if top or not root or any(not n.isprintable() or n in ("", ".", "..") for n in nodes):
        raise ConfigError(f"cannot use ZooKeeper root {root!r}: the form is /path")
    return "/".join(("", *nodes, encode_znode_name(validate_cluster_name(cluster)), kind))


def encode_znode_name(name: str) -> str:
    """Return a name as a znode name: no slash, not empty, neither `.` nor `..`."""
    return quote(name, safe="").replace(".", "%2E" if name in (".", "..") else ".") or "%"


def decode_znode_name(node: str) -> str | None:
    """Return the name that a znode name encodes, or None if it is not in canonical form."""
    name = unquote(node)
    return name if encode_znode_name(name) == node else None


T = TypeVar("T")

Decode: TypeAlias = Callable[[str, bytes], T | None]
"""Decodes the data of a znode; returns None if that is impossible."""

# Znodes read at a time; more would only fill queues.
_BATCH = 100
# All znodes are watched; the rescan only repairs what a lost watch event would leave wrong.
_RESCAN_INTERVAL_S = 60.0
# After an outage other nodes register again one by one; for this many session timeouts no entry
# counts as removed.
_RETAIN_TIMEOUTS = 4
# After this many session timeouts without a connection ZooKeeper has expired the session, and a new
# one may connect where this one cannot: kazoo stops after rejected credentials, and a server that
# lost its data rejects clients with a newer transaction id.
_ABANDON_TIMEOUTS = 2
# Another node may register or leave between two steps, which are then repeated.
_REGISTER_TRIES = 3


class LocalRegistration(msgspec.Struct, Generic[T], frozen=True):
    """What this node registers."""

    name: str
    data: bytes
    is_stale_own: Callable[[T], bool]
    """Whether an entry of another session with this name is of this node, before a restart."""

    @property
    def node(self) -> str:
        """The znode name."""
        return encode_znode_name(self.name)


class ZooKeeperRegistry(Generic[T]):
    """Reads and watches all znodes below a path, and keeps this node's own one registered."""

    def __init__(
        self,
        hosts: str,
        path: str,
        decode: Decode[T],
        *,
        purpose: str,
        session_timeout_s: float,
        connect_timeout_s: float,
        request_timeout_s: float,
        auth: Iterable[tuple[str, str]],
    ) -> None:
        try:
            from postroad.cluster.discovery.zookeeper_session import validate_hosts
        except ImportError as error:
            raise MissingExtraError("zookeeper", purpose) from error
        self._hosts = validate_hosts(hosts)
        self._parent = path
        self._decode = decode
        self._session_timeout_s = validate_seconds("session_timeout_s", session_timeout_s)
        self._connect_timeout_s = validate_seconds("connect_timeout_s", connect_timeout_s)
        self._request_timeout_s = validate_seconds("request_timeout_s", request_timeout_s)
        self._auth = tuple(auth)
        # Set by `watch`.
        self._local: LocalRegistration[T] | None = None
        self._report: DiscoveryReporter
        # None between sessions.
        self.session: ZooKeeperSession | None = None
        self._wake = asyncio.Event()
        # Entries that were read and are watched, by znode name; None if it could not be decoded.
        self._entries: dict[str, T | None] = {}
        # Whether this node's znode was read and is watched.
        self._is_registered = False
        # Znodes that may have changed since the last refresh started.
        self._stale: set[str] = set()
        # Number of connection losses that the entries account for.
        self._losses = 0
        # Entries after the last refresh that succeeded.
        self._current: dict[str, T] = {}
        # Entries from before the last connection loss, and until when they are retained.
        self._retained: dict[str, T] = {}
        self._retain_until = 0.0
        # The session in which a stale znode of this node was replaced.
        self._replaced_in: int | None = None

    @property
    def source(self) -> str:
        """Human-readable location of the registry."""
        return f"ZooKeeper {self._hosts} {self._parent}"

    @property
    def first_result_s(self) -> float:
        """How long the first refresh may take."""
        return self._connect_timeout_s + self._request_timeout_s

    # Watching.

    async def watch(
        self, local: LocalRegistration[T] | None, report: DiscoveryReporter
    ) -> AsyncIterator[Mapping[str, T] | None]:
        """Watch for ever; yield the entries after each refresh, or None if it failed.

        Without a registration of this node nothing is ever written.
        """
        self._local, self._report = local, report
        attempt = 0
        while True:
            self._wake.clear()
            is_complete, snapshot = await self._refresh()
            yield snapshot
            attempt = 0 if is_complete else attempt + 1
            delay_s = self._retain_until - _now()
            delay_s = min(delay_s, _RESCAN_INTERVAL_S) if delay_s > 0 else _RESCAN_INTERVAL_S
            if attempt:
                delay_s = retry_delay_s(attempt, min(RETRY_MAX_S, self._session_timeout_s))
            await self._sleep(delay_s)

    async def _sleep(self, delay_s: float) -> None:
        """Wait for a change, but not longer than the delay."""
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _refresh(self) -> tuple[bool, Mapping[str, T] | None]:
        """Register and read all znodes.

        Returns whether nothing is left to do until a change, and the entries if all could be read.
        """
        session = self.session or await self._open()
        self._report.set_connected(session.is_connected)
        if not session.is_connected:
            await self._warn_disconnected(session)
            return False, None
        self._drop_unwatched(session)
        is_registered = await self._attempt(self._register(session))
        self._report.counts.is_registered = self._is_registered
        is_read = await self._attempt(self._read_entries(session))
        is_current = is_read and session.losses == self._losses
        return is_registered and is_read, self._snapshot() if is_current else None

    def _snapshot(self) -> Mapping[str, T]:
        """Return the entries, after all znodes were read."""
        if _now() >= self._retain_until:
            self._retained = {}
        snapshot = dict(self._retained)
        for node, value in self._entries.items():
            last = self._current.get(node) if value is None else value
            if last is not None:
                snapshot[node] = last
        self._current = snapshot
        return snapshot

    async def _open(self) -> ZooKeeperSession:
        """Open a session and give it time to connect."""
        from postroad.cluster.discovery.zookeeper_session import ZooKeeperSession

        self.session = ZooKeeperSession(
            self._hosts,
            timeout_s=self._session_timeout_s,
            request_timeout_s=self._request_timeout_s,
            auth=self._auth,
            on_change=self._wake.set,
            on_watch=self._on_watch,
        )
        self._reset(losses=0)
        self.session.open()
        await self._sleep(self._connect_timeout_s)
        return self.session

    async def _warn_disconnected(self, session: ZooKeeperSession) -> None:
        """Report that there is no connection; abandon a session that may never get one."""
        self._report.report_failure(
            "connection", "not connected: %s", session.last_error or "no reply"
        )
        if _now() - session.changed_at > _ABANDON_TIMEOUTS * self._session_timeout_s:
            self.session = None
            await session.close(self._request_timeout_s)

    async def _attempt(self, step: Awaitable[bool]) -> bool:
        try:
            return await step
        except OSError as error:
            self._report.report_failure(type(error).__name__, "%s", error)
            return False

    def _drop_unwatched(self, session: ZooKeeperSession) -> None:
        """Drop entries that must be read again."""
        if session.losses != self._losses:
            self._reset(losses=session.losses)
        if self._local is not None and self._local.node in self._stale:
            self._is_registered = False
        for node in self._stale:
            self._entries.pop(node, None)
        self._stale.clear()

    def _reset(self, *, losses: int) -> None:
        self._losses = losses
        self._entries.clear()
        self._is_registered = False
        self._retained = self._current
        self._retain_until = _now() + _RETAIN_TIMEOUTS * self._session_timeout_s

    def _on_watch(self, path: str) -> None:
        # Collected apart from the entries: an event may overtake the read that it makes obsolete.
        self._stale.add(path.rpartition("/")[2])
        self._wake.set()

    # This node's registration.

    async def _register(self, session: ZooKeeperSession) -> bool:
        """Register this node if required; return whether it is registered and watched."""
        local = self._local
        if local is None or self._is_registered:
            return True
        path = self._path(local.node)
        for _ in range(_REGISTER_TRIES):
            if await session.create(path, local.data):
                self._report.counts.registrations += 1
            entry = await session.read(path)
            if entry is None:
                continue
            if entry.owner == session.id and entry.data == local.data:
                self._is_registered = True
                break
            if not self._may_replace(local, entry, session.id):
                self._report_conflict(local, entry)
                break
            if await session.replace(path, local.data, entry.version):
                self._report.counts.registrations += 1
                self._replaced_in = session.id
        return self._is_registered

    def _may_replace(
        self, local: LocalRegistration[T], entry: Znode, session_id: int | None
    ) -> bool:
        """Return whether the znode is this node's own, of this session or an earlier one."""
        if entry.owner == session_id:
            return True
        registered = self._decode(local.node, entry.data)
        # Once per session: two nodes with one name and address must not replace each other for
        # ever.
        return (
            registered is not None
            and local.is_stale_own(registered)
            and self._replaced_in != session_id
        )

    def _report_conflict(self, local: LocalRegistration[T], entry: Znode) -> None:
        self._report.counts.conflicts += 1
        self._report.warn(
            "conflict",
            "name conflict: name %r is registered by a node at %s (session 0x%x); "
            "give each node a name of its own",
            *(local.name, self._decode(local.node, entry.data), entry.owner),
            level=logging.ERROR,
        )

    def _path(self, node: str) -> str:
        return f"{self._parent}/{node}"

    # Entries of others.

    async def _read_entries(self, session: ZooKeeperSession) -> bool:
        """Read all znodes that are new or have changed; return True, or raise."""
        nodes = await session.children(self._parent)
        for removed in self._entries.keys() - set(nodes):
            del self._entries[removed]
        unread = [node for node in nodes if node not in self._entries]
        for first in range(0, len(unread), _BATCH):
            batch = unread[first : first + _BATCH]
            read = await asyncio.gather(*(session.read(self._path(node)) for node in batch))
            for node, entry in zip(batch, read, strict=True):
                # The watch of the parent reports a znode that was removed meanwhile.
                if entry is not None:
                    self._entries[node] = self._decode_entry(node, entry)
        return True

    def _decode_entry(self, node: str, entry: Znode) -> T | None:
        value = self._decode(node, entry.data)
        if value is None:
            self._report.counts.skipped += 1
            self._report.warn(
                "skipped", "%s skipped: it holds no address: %.80r", self._path(node), entry.data
            )
        return value

    async def close(self) -> None:
        """Close the session, which removes this node's znode."""
        session, self.session = self.session, None
        is_closed = session is None or await session.close(self._request_timeout_s)
        if self._is_registered and not is_closed:
            text = "closing the session timed out; ZooKeeper removes the registration within %g s"
            self._report.warn("end", text, self._session_timeout_s)


def _now() -> float:
    return asyncio.get_running_loop().time()
