"""Opening connections: TCP and TLS with a timeout, and dials that end with their caller."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from postroad.core import Address
from postroad.core import fault_points as faults
from postroad.core.errors import ConnectError, NotRunningError, TlsError
from postroad.net.connections.connection import PeerConnection
from postroad.net.context import ConnectionContext

BEFORE_CONNECT = faults.declare_fault_point("net.dial.before_connect")

ConnectionT = TypeVar("ConnectionT", bound=PeerConnection)


async def connect(
    context: ConnectionContext,
    address: Address,
    tls: ssl.SSLContext | None,
    factory: Callable[[], ConnectionT],
) -> ConnectionT:
    """Connect with TCP and TLS; the timeout covers name resolution as well."""
    limit_s = context.limits.connect_timeout_s
    BEFORE_CONNECT.hit(address=address)
    try:
        async with asyncio.timeout(limit_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                factory, address.host, address.port, ssl=tls
            )
    except TimeoutError:
        detail = f"no connection within {limit_s:.3g} s"
        raise ConnectError(detail, peer=str(address)) from None
    except ssl.SSLError as error:
        raise TlsError(f"TLS failed: {error}", peer=str(address)) from None
    except (ConnectionAbortedError, ConnectionResetError) as error:
        # The peer may not use TLS, or may be stopping; the latter is worth a retry.
        kind = TlsError if tls is not None else ConnectError
        detail = str(error) or "the peer closed the connection; does it use TLS?"
        raise kind(f"cannot connect: {detail}", peer=str(address), retryable=True) from None
    except (OSError, OverflowError, UnicodeError, ValueError) as error:
        raise ConnectError(f"cannot connect: {error}", peer=str(address)) from None
    return connection


class DialTasks(Generic[ConnectionT]):
    """Dials with one caller each; they are cancelled with the caller or the service."""

    def __init__(self, release: Callable[[ConnectionT], None]) -> None:
        # Closes a connection whose caller was cancelled.
        self._release = release
        self._tasks: dict[asyncio.Task[ConnectionT], None] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, dial: Coroutine[Any, Any, ConnectionT]) -> ConnectionT:
        task = asyncio.get_running_loop().create_task(dial)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        try:
            return await task
        except asyncio.CancelledError:
            if task.done() and not task.cancelled() and task.exception() is None:
                # The caller was cancelled in the loop iteration in which the dial succeeded.
                self._release(task.result())
            # Either the caller was cancelled, or the service stops and cancelled the dial.
            caller = asyncio.current_task()
            is_called_off = caller is not None and caller.cancelling() > 0
            if self._is_closed and task.cancelled() and not is_called_off:
                raise NotRunningError("the service stopped while connecting") from None
            raise

    def cancel(self) -> list[asyncio.Task[ConnectionT]]:
        """Cancel all dials because the service stops; return their tasks."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks
