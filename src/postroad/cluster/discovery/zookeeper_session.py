"""A ZooKeeper session for asyncio: kazoo's threads behind coroutines.

Only this module imports kazoo, which reconnects by itself and starts a new session when the old one
has expired. Its callbacks are forwarded to the event loop; no code of ours runs in its threads.
Failures are raised as `OSError`: `TimeoutError`, `PermissionError` if ZooKeeper denies access, else
`ConnectionError`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from kazoo import exceptions
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.hosts import collect_hosts

from postroad.core.errors import ConfigError

# Backoff between attempts to connect. The maximum is not longer than the session, so that a node is
# back soon after its ZooKeeper.
_RECONNECT_INITIAL_S = 0.1
_RECONNECT_MAX_S = 5.0

# A warning that kazoo logs after each line with the cause.
_FOLLOW_UP_WARNING = "Transition to CONNECTING"

_ACCESS_ERRORS = (exceptions.AuthFailedError, exceptions.InvalidACLError, exceptions.NoAuthError)


class Znode(msgspec.Struct, frozen=True):
    """A znode as read."""

    data: bytes
    owner: int
    """Session that owns the ephemeral znode; 0 for a persistent one."""
    version: int


class ZooKeeperSession:
    """One kazoo client. Methods and callbacks run on the event loop.

    Args:
        on_change: called when the connection was established or lost.
        on_watch: called with the path when a watched znode may have changed.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout_s: float,
        request_timeout_s: float,
        auth: Sequence[tuple[str, str]],
        on_change: Callable[[], None],
        on_watch: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._request_timeout_s = request_timeout_s
        self._on_change = on_change
        self._on_watch = on_watch
        self._log = _KazooLogAdapter(logging.getLogger("postroad.cluster.discovery.kazoo"))
        self._handler = SequentialThreadingHandler()
        self._client = KazooClient(
            hosts=hosts,
            timeout=timeout_s,
            handler=self._handler,
            auth_data=list(auth),
            connection_retry={
                "max_tries": -1,
                "delay": _RECONNECT_INITIAL_S,
                "max_delay": min(_RECONNECT_MAX_S, timeout_s),
            },
            logger=self._log,
        )
        self._client.add_listener(
            lambda state: self._call_soon_threadsafe(
                self._set_connected, state == KazooState.CONNECTED
            )
        )
        self._is_closed = False
        self.is_connected = False
        # When `is_connected` changed last.
        self.changed_at = self._loop.time()
        # Counts lost connections. A loss ends all watches, so what was read before is not watched.
        self.losses = 0

    # Lifecycle.

    def open(self) -> None:
        """Start to connect, without waiting."""
        self._client.start_async()

    async def close(self, timeout_s: float) -> bool:
        """Close the session; return False if that takes longer and continues in the background."""
        self._is_closed = True
        closed = self._loop.create_future()
        # Not in the loop's executor: a thread that hangs there would keep the process from ending.
        threading.Thread(target=self._close, args=(closed,), daemon=True).start()
        done, _ = await asyncio.wait({closed}, timeout=timeout_s)
        return bool(done)

    def _close(self, closed: asyncio.Future[None]) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            self._log.debug("closing the session failed: %r", error)
        self._call_soon_threadsafe(_resolve, closed, None, None)

    @property
    def id(self) -> int | None:
        """Id of the session while connected."""
        client_id = self._client.client_id
        return client_id[0] if client_id else None

    @property
    def last_error(self) -> str:
        """The last warning of kazoo."""
        return self._log.last_warning

    # Znodes.

    async def create(self, path: str, data: bytes) -> bool:
        """Create an ephemeral znode and its parents; return False if it exists."""
        try:
            await self._await_kazoo(
                self._client.create_async, path, data, ephemeral=True, makepath=True
            )
        except exceptions.NodeExistsError:
            return False
        return True

    async def read(self, path: str) -> Znode | None:
        """Read and watch a znode; return None, without a watch, if it does not exist."""
        try:
            data, stat = await self._await_kazoo(self._client.get_async, path, watch=self._on_event)
        except exceptions.NoNodeError:
            return None
        return Znode(data, stat.ephemeralOwner, stat.version)

    async def children(self, path: str) -> list[str]:
        """List and watch the children of a znode; empty if it does not exist."""
        while True:
            try:
                children = self._client.get_children_async
                names: list[str] = await self._await_kazoo(children, path, watch=self._on_event)
            except exceptions.NoNodeError:
                # Of a missing znode only the creation can be watched.
                exists = self._client.exists_async
                if await self._await_kazoo(exists, path, watch=self._on_event) is None:
                    return []
            else:
                return names

    async def replace(self, path: str, data: bytes, version: int) -> bool:
        """Replace a znode by an ephemeral one of this session, atomically.

        Returns False, without any change, if the znode was changed or removed meanwhile.
        """
        transaction = self._client.transaction()
        transaction.delete(path, version)
        transaction.create(path, data, ephemeral=True)
        results = await self._await_kazoo(lambda _path: transaction.commit_async(), path)
        for error in results:
            if isinstance(error, _ACCESS_ERRORS):
                raise _permission_error(path, error) from error
        return not any(isinstance(result, Exception) for result in results)

    async def _await_kazoo(
        self, call: Callable[..., Any], path: str, *args: Any, **options: Any
    ) -> Any:
        """Call kazoo and await its result, which comes from another thread."""
        future = self._loop.create_future()
        result = call(path, *args, **options)
        result.rawlink(
            lambda result: self._call_soon_threadsafe(
                _resolve, future, result.value, result.exception
            )
        )
        try:
            async with asyncio.timeout(self._request_timeout_s):
                return await future
        except TimeoutError:
            raise TimeoutError(f"no reply within {self._request_timeout_s:g} s") from None
        except _ACCESS_ERRORS as error:
            raise _permission_error(path, error) from error
        except (exceptions.NoNodeError, exceptions.NodeExistsError):
            raise
        except exceptions.KazooException as error:
            raise ConnectionError(f"{type(error).__name__} at {path}") from error

    # In kazoo's threads.

    def _on_event(self, event: Any) -> None:
        # An event without a path reports lost watches, as the connection loss did already.
        if event.path is not None:
            self._call_soon_threadsafe(self._on_watch_event, event.path)

    def _call_soon_threadsafe(self, call: Callable[..., None], *args: object) -> None:
        """Call a function on the event loop."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            self._log.debug("event dropped: the event loop is closed")

    # On the event loop.

    def _set_connected(self, is_connected: bool) -> None:
        self.is_connected = is_connected
        self.changed_at = self._loop.time()
        self.losses += not is_connected
        if not self._is_closed:
            self._on_change()

    def _on_watch_event(self, path: str) -> None:
        if not self._is_closed:
            self._on_watch(path)


class _KazooLogAdapter(logging.LoggerAdapter[logging.Logger]):
    """Logs kazoo's lines at debug level: it warns at every attempt to connect."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger)
        self.last_warning = ""

    def log(self, level: int, msg: object, *args: Any, **options: Any) -> None:
        """Log one of kazoo's lines, and keep it if it is a warning with a cause."""
        if level >= logging.WARNING and msg != _FOLLOW_UP_WARNING:
            self.last_warning = (str(msg) % args if args else str(msg)).rstrip(": ")
        super().log(min(level, logging.DEBUG), msg, *args, **options)


def _resolve(future: asyncio.Future[Any], value: object, exception: BaseException | None) -> None:
    """Complete the future, unless it is done or cancelled."""
    if future.done():
        return
    if exception is not None:
        future.set_exception(exception)
    else:
        future.set_result(value)


def _permission_error(path: str, error: Exception) -> PermissionError:
    return PermissionError(
        f"access to {path} denied ({type(error).__name__}); check auth and the ACL"
    )


def validate_hosts(hosts: str) -> str:
    """Return the connection string if kazoo can parse it, else raise ConfigError."""
    try:
        servers, _ = collect_hosts(hosts)
        is_usable = all(host and not host.isspace() for host, _ in servers)
    except (TypeError, ValueError):
        is_usable = False
    if not is_usable:
        raise ConfigError(f"cannot use ZooKeeper hosts {hosts!r}: the form is host:port,host:port")
    return hosts
