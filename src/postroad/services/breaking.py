"""Circuit breakers at work: one for each endpoint that fails, and timers to try it again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from .breakers import Breaker, BreakerConfig, BreakerState, is_blamed
from .endpoints import Endpoint, EndpointList
from .errors import MoleculerError
from .schema import ActionInfo

BREAKERS_MAX = 10_000

OnTurn = Callable[[str, str, str, Breaker], None]
"""Called with the new state, the node, the action, and the breaker."""

_SAID = {
    BreakerState.OPEN: "opened",
    BreakerState.HALF_OPEN: "half-opened",
    BreakerState.CLOSED: "closed",
}


class Breakers:
    """The circuit breakers of all endpoints this node calls."""

    def __init__(
        self, list_of: Callable[[str], EndpointList[ActionInfo] | None], on_turn: OnTurn
    ) -> None:
        self._list_of = list_of
        self._on_turn = on_turn
        self._loop = asyncio.get_running_loop()
        self._breakers: dict[tuple[str, str], Breaker] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def begin(self, endpoint: Endpoint[ActionInfo], config: BreakerConfig) -> int:
        """A call is given to an endpoint; gives its ticket."""
        key = endpoint.node.id, endpoint.info.name
        breaker = self._breakers.get(key)
        if breaker is None or breaker.config != config:
            if len(self._breakers) >= BREAKERS_MAX:
                self.forget()
            breaker = self._breakers[key] = Breaker(config, self._loop.time())
        before = breaker.state
        ticket = breaker.begin(self._loop.time())
        self._follow(key, breaker, before)
        return ticket

    def end(self, endpoint: Endpoint[ActionInfo], ticket: int, error: BaseException | None) -> None:
        """A call of an endpoint ended, well or not."""
        key = endpoint.node.id, endpoint.info.name
        breaker = self._breakers.get(key)
        if breaker is None:
            return
        before, now = breaker.state, self._loop.time()
        if error is not None and _blames(error, endpoint.node.id):
            breaker.fail(ticket, now)
        else:
            breaker.succeed(ticket, now)
        self._follow(key, breaker, before)

    def forget_node(self, node_id: str) -> None:
        """A node begins anew."""
        for key in [it for it in self._breakers if it[0] == node_id]:
            del self._breakers[key]
            self._cancel(key)
            self._set_accepting(*key, True)

    def forget(self) -> None:
        """Begin anew with all."""
        for key in [*self._timers]:
            self._cancel(key)
        for node_id, action in self._breakers:
            self._set_accepting(node_id, action, True)
        self._breakers.clear()

    def _follow(self, key: tuple[str, str], breaker: Breaker, before: BreakerState) -> None:
        """Let the rest of the node know of a new state."""
        if breaker.state is before:
            return
        self._set_accepting(*key, breaker.is_accepting)
        self._cancel(key)
        deadline = breaker.deadline()
        if deadline < math.inf:
            self._timers[key] = self._loop.call_at(deadline, self._tick, key, breaker)
        if breaker.state in _SAID:
            self._on_turn(_SAID[breaker.state], *key, breaker)

    def _tick(self, key: tuple[str, str], breaker: Breaker) -> None:
        self._timers.pop(key, None)
        if self._breakers.get(key) is breaker:
            before = breaker.state
            # Timers of some loops come a little too early, and this one comes only once.
            breaker.tick(max(self._loop.time(), breaker.deadline()))
            self._follow(key, breaker, before)

    def _set_accepting(self, node_id: str, action: str, is_accepting: bool) -> None:
        found = self._list_of(action)
        if found is not None:
            found.set_accepting(node_id, is_accepting)

    def _cancel(self, key: tuple[str, str]) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()


def _blames(error: BaseException, node_id: str) -> bool:
    status = error.status if isinstance(error, MoleculerError) else None
    failed_at = error.node_id if isinstance(error, MoleculerError) else None
    code = status if isinstance(status, int) else None
    return is_blamed(code, failed_at=failed_at, endpoint=node_id)
