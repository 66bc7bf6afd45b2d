"""Contacts from ZooKeeper: every node enters its address below a common path and reads the rest.

The path is `<root>/<cluster>/members/<name>`; the entry is ephemeral, its data is JSON. An entry
ends with its owner's session; a ZooKeeper that is away removes nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from postroad.core import Address, validate_cluster_name
from postroad.core.errors import ConfigError, MissingExtra

from .background import RETRY_MAX_S, BackgroundDiscovery, check_port, check_seconds, retry_pause

if TYPE_CHECKING:
    from .zookeeper import Entry, ZooKeeperSession

# Entries asked for at once; more would only fill queues.
_BATCH = 100
# Everything is watched, so this only mends what a lost event would leave wrong.
_RECHECK_S = 60.0
# After an outage others enter themselves again at their own pace; for so many session time-outs
# nobody is taken for gone.
_KEEP_TIMEOUTS = 4
# After so many session time-outs without a connection the session is over for ZooKeeper, and a new
# one may connect where this one cannot: kazoo gives up on refused credentials, and a server that
# lost its data refuses clients that know more than it does.
_GIVE_UP_TIMEOUTS = 2
# Another node may enter itself or go between two steps; then the steps are taken again.
_REGISTER_TRIES = 3


class _Registration(msgspec.Struct):
    """What a node says of itself. Fields that are not known here are ignored."""

    address: str


class ZooKeeperDiscovery(BackgroundDiscovery):
    """Enters this node in ZooKeeper and finds the others there. Needs the extra `zookeeper`.

    Args:
        hosts: servers of one ensemble, `host:port,host:port`, and a path that exists there if
            everything is to be kept below it: `host:port,host:port/path`.
        cluster: nodes of other clusters are not found.
        root: the path under which all clusters are kept; made if it does not exist.
        session_timeout_s: how long ZooKeeper keeps the entry of a node that is gone.
        connect_timeout_s: how long `start` waits for a server before it goes on without.
        request_timeout_s: how long one answer, or the end of the session, is waited for.
        auth: pairs of scheme and credential, such as `("digest", "user:password")`.

    Raises:
        ConfigError: a setting is wrong.
        MissingExtra: the extra is not installed.
    """

    def __init__(
        self,
        hosts: str,
        cluster: str,
        root: str = "/postroad",
        session_timeout_s: float = 10.0,
        *,
        connect_timeout_s: float = 3.0,
        request_timeout_s: float = 3.0,
        auth: Iterable[tuple[str, str]] = (),
    ) -> None:
        try:
            from .zookeeper import check_hosts
        except ImportError as error:
            raise MissingExtra("zookeeper", "discovery by ZooKeeper") from error
        self._hosts = check_hosts(hosts)
        self._members = f"{_check_root(root)}/{_node_of(validate_cluster_name(cluster))}/members"
        self._session_timeout_s = check_seconds("session_timeout_s", session_timeout_s)
        self._connect_timeout_s = check_seconds("connect_timeout_s", connect_timeout_s)
        self._request_timeout_s = check_seconds("request_timeout_s", request_timeout_s)
        self._auth = tuple(auth)
        # None between sessions.
        self._session: ZooKeeperSession | None = None
        self._wake = asyncio.Event()
        # What was read and is watched since, by node: the address, or None if there is none in it.
        self._entries: dict[str, Address | None] = {}
        # The own entry is among what was read and is watched.
        self._is_registered = False
        # Nodes that may have changed since the last look began.
        self._stale: set[str] = set()
        # Losses of the connection that are allowed for in the entries.
        self._losses = 0
        # Contacts of before the last loss, and until when they are told.
        self._kept: frozenset[Address] = frozenset()
        self._keep_until = 0.0
        # The session in which an entry of an earlier life was removed.
        self._replaced_in: int | None = None
        super().__init__(
            f"ZooKeeper {hosts} {self._members}",
            first_answer_s=connect_timeout_s + request_timeout_s,
        )

    # The search.

    async def _search(self) -> None:
        attempt = 0
        while True:
            self._wake.clear()
            is_settled = await self._look()
            self._answered.set()
            attempt = 0 if is_settled else attempt + 1
            await self._sleep(self._pause(attempt))

    def _pause(self, attempt: int) -> float:
        if attempt:
            return retry_pause(attempt, min(RETRY_MAX_S, self._session_timeout_s))
        kept_s = self._keep_until - self._loop.time()
        return min(kept_s, _RECHECK_S) if kept_s > 0 else _RECHECK_S

    async def _sleep(self, pause_s: float) -> None:
        """Wait until there is news, but not longer than the pause."""
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _look(self) -> bool:
        """Register, read and tell; True if nothing is left to be done until there is news."""
        session = self._session or await self._open()
        self._set_connected(session.is_connected)
        if not session.is_connected:
            await self._complain_of(session)
            return False
        self._forget_unwatched(session)
        is_registered = await self._attempt(self._register(session))
        is_read = await self._attempt(self._read(session))
        if is_read and session.losses == self._losses:
            self._tell_entries()
        return is_registered and is_read

    def _tell_entries(self) -> None:
        if self._loop.time() >= self._keep_until:
            self._kept = frozenset()
        self._tell(self._kept.union(filter(None, self._entries.values())))

    async def _open(self) -> ZooKeeperSession:
        """Make a session and give it time to connect."""
        from .zookeeper import ZooKeeperSession

        self._session = ZooKeeperSession(
            self._hosts,
            timeout_s=self._session_timeout_s,
            request_timeout_s=self._request_timeout_s,
            auth=self._auth,
            on_change=self._wake.set,
            on_watch=self._on_watch,
        )
        self._forget_all(losses=0)
        self._session.open()
        await self._sleep(self._connect_timeout_s)
        return self._session

    async def _complain_of(self, session: ZooKeeperSession) -> None:
        """Say that there is no connection; let go of a session that may never have one."""
        self._complain("connection", "not connected: %s", session.trouble or "no answer")
        disconnected_s = self._loop.time() - session.changed_at
        if disconnected_s > _GIVE_UP_TIMEOUTS * self._session_timeout_s:
            self._session = None
            await session.close(self._request_timeout_s)

    async def _attempt(self, step: Awaitable[bool]) -> bool:
        try:
            return await step
        except OSError as error:
            self._complain(type(error).__name__, "%s", error)
            return False

    def _forget_unwatched(self, session: ZooKeeperSession) -> None:
        """Drop what has to be read again."""
        if session.losses != self._losses:
            self._forget_all(losses=session.losses)
        self._is_registered &= _node_of(self._name) not in self._stale
        for node in self._stale:
            self._entries.pop(node, None)
        self._stale.clear()

    def _forget_all(self, *, losses: int) -> None:
        self._losses = losses
        self._entries.clear()
        self._is_registered = False
        self._kept = self._contacts or frozenset()
        self._keep_until = self._loop.time() + _KEEP_TIMEOUTS * self._session_timeout_s

    def _on_watch(self, path: str) -> None:
        # Kept aside: an event may overtake the answer that it makes obsolete.
        self._stale.add(path.rpartition("/")[2])
        self._wake.set()

    # The own entry.

    async def _register(self, session: ZooKeeperSession) -> bool:
        """Make sure that the own entry is there; True if it is, and watched."""
        path, data = self._path(_node_of(self._name)), self._data()
        for _ in range(0 if self._is_registered else _REGISTER_TRIES):
            if await session.create(path, data):
                self._counts.registrations += 1
            entry = await session.read(path)
            if entry is None:
                continue
            self._is_registered = entry.owner == session.id and entry.data == data
            if self._is_registered:
                break
            if not self._may_replace(entry, session.id):
                self._report_conflict(entry)
                break
            await session.delete(path, entry.version)
        return self._is_registered

    def _may_replace(self, entry: Entry, session_id: int | None) -> bool:
        """Whether an entry under this node's name is its own, of this session or an earlier one."""
        if entry.owner == session_id:
            return True
        # Once in a session: two nodes with one name and address must not take turns for ever.
        if _read_address(entry.data) != self._address or self._replaced_in == session_id:
            return False
        self._replaced_in = session_id
        return True

    def _report_conflict(self, entry: Entry) -> None:
        self._counts.conflicts += 1
        self._warn(
            "conflict",
            "the name %r is taken by a node at %s (session 0x%x); "
            "two nodes of a cluster must not have the same name",
            *(self._name, _read_address(entry.data), entry.owner),
            level=logging.ERROR,
        )

    def _data(self) -> bytes:
        return msgspec.json.encode(_Registration(str(self._address)))

    def _path(self, node: str) -> str:
        return f"{self._members}/{node}"

    # The entries of others.

    async def _read(self, session: ZooKeeperSession) -> bool:
        """Bring the entries up to date: True, or an error."""
        nodes = await session.children(self._members)
        for gone in self._entries.keys() - set(nodes):
            del self._entries[gone]
        unread = [node for node in nodes if node not in self._entries]
        for first in range(0, len(unread), _BATCH):
            batch = unread[first : first + _BATCH]
            read = await asyncio.gather(*(session.read(self._path(node)) for node in batch))
            for node, entry in zip(batch, read, strict=True):
                # One that went meanwhile is told by the watch of its parent.
                if entry is not None:
                    self._entries[node] = self._address_in(node, entry)
        return True

    def _address_in(self, node: str, entry: Entry) -> Address | None:
        address = _read_address(entry.data)
        if address is None:
            self._counts.skipped += 1
            self._warn("skipped", "%s holds no address: %.80r", self._path(node), entry.data)
        return address

    async def _withdraw(self) -> None:
        """End the session, and with it the own entry."""
        session, self._session = self._session, None
        is_closed = session is None or await session.close(self._request_timeout_s)
        if self._is_registered and not is_closed:
            text = "no answer to the end of the session; the entry goes within %g s"
            self._warn("end", text, self._session_timeout_s)


def _read_address(data: bytes) -> Address | None:
    try:
        registration = msgspec.json.decode(data, type=_Registration)
        return check_port(Address.parse(registration.address))
    except (msgspec.DecodeError, UnicodeDecodeError, ConfigError):
        return None


def _node_of(name: str) -> str:
    """A name as ZooKeeper allows it: no slash, not empty, neither `.` nor `..`."""
    return quote(name, safe="").replace(".", "%2E" if name in (".", "..") else ".") or "%"


def _check_root(root: str) -> str:
    """Return the path without a slash at its end, or raise ConfigError."""
    top, *nodes = root.rstrip("/").split("/")
    if top or not root or any(not n.isprintable() or n in ("", ".", "..") for n in nodes):
        raise ConfigError(f"root {root!r} is not of the form /path")
    return "/".join(("", *nodes)) if nodes else ""
