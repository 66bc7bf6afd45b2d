"""A ZooKeeper session for asyncio: kazoo's threads behind coroutines. kazoo is known here alone.

kazoo reconnects by itself and starts a new session when the old one expired. What it tells in its
own threads is handed to the loop; nothing of ours runs in them. Failures come out as `OSError`:
`TimeoutError`, `PermissionError` when ZooKeeper refuses, else `ConnectionError`.
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

# Pauses between attempts to connect, doubling in between. The longest is not longer than the
# session, so that a node is back soon after its ZooKeeper.
_RECONNECT_INITIAL_S = 0.1
_RECONNECT_MAX_S = 5.0

# What kazoo warns of after each line that tells the cause.
_FOLLOW_UP_WARNING = "Transition to CONNECTING"

_ACCESS_ERRORS = (
    exceptions.AuthFailedError,
    exceptions.InvalidACLError,
    exceptions.NoAuthError,
)


class Znode(msgspec.Struct, frozen=True):
    """A node of ZooKeeper as it was read."""

    data: bytes
    owner: int
    """The session it ends with; 0 if with none."""
    version: int


class ZooKeeperSession:
    """One kazoo client. Methods and callbacks belong to the loop.

    Args:
        hosts: `host:port,host:port/chroot`.
        auth: pairs of scheme and credential.
        on_change: called when the connection came or went.
        on_watch: called with the path when something watched may have changed.
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
        self._client.add_listener(self._on_state)
        self._is_closed = False
        self.is_connected = False
        # When that changed last.
        self.changed_at = self._loop.time()
        # Counts lost connections. Watches die with one, so what was read before is not watched.
        self.losses = 0

    # Life.

    def open(self) -> None:
        """Begin to connect; does not wait for it."""
        self._client.start_async()

    async def close(self, timeout_s: float) -> bool:
        """End the session and its nodes; False if that takes longer and goes on by itself."""
        self._is_closed = True
        closed = self._loop.create_future()
        # Not the loop's executor: a thread of that which hangs would keep the program from ending.
        threading.Thread(target=self._close, args=(closed,), daemon=True).start()
        done, _ = await asyncio.wait({closed}, timeout=timeout_s)
        return bool(done)

    def _close(self, closed: asyncio.Future[None]) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            self._log.debug("closing failed: %r", error)
        self._call_soon_threadsafe(_resolve, closed, None, None)

    @property
    def id(self) -> int | None:
        """The session's number while connected."""
        client_id = self._client.client_id
        return client_id[0] if client_id else None

    @property
    def last_error(self) -> str:
        """What kazoo complained about last."""
        return self._log.last_warning

    # Nodes.

    async def create(self, path: str, data: bytes) -> bool:
        """Make a node that ends with this session, and what is above it; False if it exists."""
        try:
            await self._await_kazoo(
                self._client.create_async, path, data, ephemeral=True, makepath=True
            )
        except exceptions.NodeExistsError:
            return False
        return True

    async def read(self, path: str) -> Znode | None:
        """Read and watch a node; None if it does not exist, and then it is not watched."""
        try:
            data, stat = await self._await_kazoo(self._client.get_async, path, watch=self._on_event)
        except exceptions.NoNodeError:
            return None
        return Znode(data, stat.ephemeralOwner, stat.version)

    async def children(self, path: str) -> list[str]:
        """List what is directly below a node, nothing if it does not exist; watched in any case."""
        while True:
            try:
                children = self._client.get_children_async
                names: list[str] = await self._await_kazoo(children, path, watch=self._on_event)
            except exceptions.NoNodeError:
                # Of a node that is not there, only its coming can be watched.
                exists = self._client.exists_async
                if await self._await_kazoo(exists, path, watch=self._on_event) is None:
                    return []
            else:
                return names

    async def replace(self, path: str, data: bytes, version: int) -> bool:
        """Put a node that ends with this session in the place of another; nobody sees a gap.

        False if the other changed or went meanwhile, and then nothing was done.
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
        """Wait on the loop for what kazoo answers in a thread of its own."""
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
            raise TimeoutError(f"no answer within {self._request_timeout_s:g} s") from None
        except _ACCESS_ERRORS as error:
            raise _permission_error(path, error) from error
        except (exceptions.NoNodeError, exceptions.NodeExistsError):
            raise
        except exceptions.KazooException as error:
            raise ConnectionError(f"{type(error).__name__} at {path}") from error

    # From kazoo's threads.

    def _on_state(self, state: str) -> None:
        self._call_soon_threadsafe(self._set_connected, state == KazooState.CONNECTED)

    def _on_event(self, event: Any) -> None:
        # An event without a path says that the watches are gone, as the loss already did.
        if event.path is not None:
            self._call_soon_threadsafe(self._on_watch_event, event.path)

    def _call_soon_threadsafe(self, call: Callable[..., None], *args: object) -> None:
        """Have something called on the loop."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            self._log.debug("the loop is closed: nobody is left to be told")

    # On the loop again.

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
    """Passes kazoo's lines on for debugging only: it warns at every attempt to connect."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger)
        self.last_warning = ""

    def log(self, level: int, msg: object, *args: Any, **options: Any) -> None:
        """Log one of kazoo's lines and remember it if it says what is wrong."""
        if level >= logging.WARNING and msg != _FOLLOW_UP_WARNING:
            self.last_warning = (str(msg) % args if args else str(msg)).rstrip(": ")
        super().log(min(level, logging.DEBUG), msg, *args, **options)


def _resolve(future: asyncio.Future[Any], value: object, exception: BaseException | None) -> None:
    """Answer whoever waits, if anybody still does."""
    if future.done():
        return
    if exception is not None:
        future.set_exception(exception)
    else:
        future.set_result(value)


def _permission_error(path: str, error: Exception) -> PermissionError:
    return PermissionError(f"access to {path} refused ({type(error).__name__})")


def validate_hosts(hosts: str) -> str:
    """Return the connection string if kazoo can use it, else raise ConfigError."""
    try:
        servers, _ = collect_hosts(hosts)
        is_usable = all(host and not host.isspace() for host, _ in servers)
    except (TypeError, ValueError):
        is_usable = False
    if not is_usable:
        raise ConfigError(f"ZooKeeper hosts {hosts!r} are not of the form host:port,host:port")
    return hosts
