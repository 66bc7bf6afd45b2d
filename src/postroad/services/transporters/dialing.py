"""Which of several servers is connected to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

Server = TypeVar("Server")
Connection = TypeVar("Connection")


async def dial_in_turn(
    servers: deque[Server],
    dial: Callable[[Server], Awaitable[Connection]],
    *,
    timeout_s: float,
) -> Connection:
    """Try one server after the other, first the one that was good last.

    All of them share the time. Raises ConnectionError with what each of them had to say.
    """
    share_s = timeout_s / len(servers)
    reasons = []
    for _ in range(len(servers)):
        server = servers[0]
        try:
            async with asyncio.timeout(share_s):
                return await dial(server)
        except OSError as error:
            reasons.append(f"{server}: {str(error) or 'no answer in time'}")
            servers.rotate(-1)
    raise ConnectionError("; ".join(reasons))
