"""Pings: is a node there, how long does it take, and how far apart are the clocks."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec

from .errors import RequestTimeoutError
from .kinds import VERSION
from .packets import Packet, Ping, Pong

_MILLISECONDS = 1000


class PingResult(msgspec.Struct, frozen=True):
    """What a ping found out."""

    node_id: str
    elapsed_s: float
    """From the ping to its answer."""
    time_difference_s: float
    """How much the clock of the node is ahead of ours, about."""

    def to_wire(self) -> dict[str, Any]:
        """As the original tells it, in milliseconds."""
        return {
            "nodeID": self.node_id,
            "elapsedTime": round(self.elapsed_s * _MILLISECONDS),
            "timeDiff": round(self.time_difference_s * _MILLISECONDS),
        }


class Pings:
    """Pings other nodes, and answers their pings.

    Args:
        node_id: of this node.
        send: sends a packet to a node.
        proven: is told of nodes that have answered a challenge.
    """

    def __init__(
        self,
        node_id: str,
        send: Callable[[Packet, str | None], None],
        proven: Callable[[str], None] = lambda node_id: None,
    ) -> None:
        self._node_id = node_id
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[tuple[str, str], asyncio.Future[Pong]] = {}
        self._proven = proven
        self._secret = secrets.token_bytes(16)
        self._has_left = False

    async def ping(self, node_id: str, id: str, timeout_s: float) -> PingResult:
        """Ping a node; raises RequestTimeoutError if there is no answer in time."""
        began = time.perf_counter()
        answer = self._waiting[node_id, id] = self._loop.create_future()
        try:
            sent = Ping(time=_clock_ms(), id=id, ver=VERSION, sender=self._node_id)
            self._send(sent, node_id)
            async with asyncio.timeout(timeout_s):
                pong = await answer
        except TimeoutError:
            raise RequestTimeoutError(data={"action": "$ping", "nodeID": node_id}) from None
        finally:
            del self._waiting[node_id, id]
        # Some loops count in milliseconds.
        elapsed_s = time.perf_counter() - began
        ahead_ms = pong.arrived - sent.time - elapsed_s * _MILLISECONDS / 2
        return PingResult(node_id, elapsed_s, ahead_ms / _MILLISECONDS)

    def challenge(self, node_id: str) -> None:
        """Ping a node that may not be there; nothing is kept until it answers."""
        id = self._challenge_id(node_id)
        self._send(Ping(time=_clock_ms(), id=id, ver=VERSION, sender=self._node_id), node_id)

    def leave(self) -> None:
        """Answer no more: whoever heard the goodbye asks whether it is true."""
        self._has_left = True

    def receive_ping(self, ping: Ping) -> None:
        """Somebody asks whether this node is there."""
        if ping.sender == self._node_id or self._has_left:
            return
        self._send(
            Pong(
                time=ping.time, id=ping.id, arrived=_clock_ms(), ver=VERSION, sender=self._node_id
            ),
            ping.sender,
        )

    def receive_pong(self, pong: Pong) -> None:
        """An answer came."""
        waiting = self._waiting.get((pong.sender, pong.id or ""))
        if waiting is not None and not waiting.done():
            waiting.set_result(pong)
        elif pong.id and hmac.compare_digest(
            pong.id.encode(), self._challenge_id(pong.sender).encode()
        ):
            self._proven(pong.sender)

    def _challenge_id(self, node_id: str) -> str:
        """What only those know who are sent the pings for a node."""
        return hmac.digest(self._secret, node_id.encode(), "sha256").hex()


def _clock_ms() -> int:
    return round(time.time() * _MILLISECONDS)
