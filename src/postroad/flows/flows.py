"""The flows of a node: starting them, and everything an operator may want of them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import msgspec

from postroad.core import Lifecycle
from postroad.core import fault_points as faults
from postroad.core.errors import ConfigError, PostroadError, StoreError, UsageError
from postroad.core.timing import backoff
from postroad.durable import Mail
from postroad.durable.store.turn import check_not_inside, outside

from . import tables, values
from .alarm import now_ms
from .config import FlowsConfig
from .definition import Definition, Registry
from .engine import Engine
from .errors import Draining, FlowKilled, NoSuchFlow
from .events import Admitted
from .head import Head, show_id
from .intake import Intake
from .life import Status
from .operations import FlowOperations
from .scheduling import ScheduleOperations, Scheduler
from .traces import beginning, keep

logger = logging.getLogger("postroad.flows")

CLAIMED = faults.declare_fault_point("flows.recovery.claimed")

P = ParamSpec("P")
R = TypeVar("R")

_ENTROPY_BYTES = 16
_CLIENT_ID_CHARS_MAX = 512
# What nobody else may do at the same store; no queue can be called that.
_CLAIM = "flows.run\n"
_FORGET_EVERY_S = 600.0
_DRAIN_LOOK_S = 0.05


class FlowHandle(Generic[R]):
    """A flow that was started; its result can be waited for."""

    __slots__ = ("_flows", "_number", "_type", "client_id", "name")

    def __init__(
        self, flows: Flows, number: int, name: str, client_id: str | None, type: Any = Any
    ) -> None:
        self._flows = flows
        self._number = number
        self._type = type
        self.name = name
        self.client_id = client_id

    @property
    def id(self) -> str:
        """What it is called."""
        return show_id(self._number)

    async def result(self, timeout: float | None = None) -> R:
        """Wait for its result.

        Raises:
            FlowError: the one it raised, as far as that can be made again.
            FlowKilled: an operator ended it.
            TimeoutError: it has not ended yet.
        """
        engine = self._flows.engine
        engine.stepping.hurry(self._number)
        with outside(engine.store):
            async with asyncio.timeout(timeout):
                head = await engine.wait(self._number)
        if head is None:
            raise NoSuchFlow(f"no flow {self.id} is known any more")
        return cast(R, _result(head, self._type))

    def __repr__(self) -> str:
        return f"<FlowHandle {self.name} {self.id}>"


def _result(head: Head, type: Any) -> Any:
    if head.status is Status.DONE:
        assert head.result is not None
        try:
            return values.decode(head.result, type)
        except msgspec.ValidationError:
            # It was of another version.
            return values.decode(head.result)
    assert head.trouble is not None
    if head.status is Status.KILLED:
        raise FlowKilled(head.trouble.failure.text)
    raise values.make_error(head.trouble.failure)


class Flows(FlowOperations, ScheduleOperations, Lifecycle):
    """Flows of one node: conversations with flows of other nodes that survive every crash.

        async with Mail(agent, SqliteStore("alpha.db")) as mail, Flows(mail, [ping, pong]) as flows:
            handle = await flows.begin(ping, "beta")
            print(await handle.result())

    Args:
        mail: of this node; start it before, stop it after.
        flows: those that can be begun here, or respond to others; or a module that has them.
        config: all sizes and times.
    """

    def __init__(
        self,
        mail: Mail,
        flows: Iterable[Definition[Any, Any]] | ModuleType,
        config: FlowsConfig | None = None,
    ) -> None:
        self.mail = mail
        self.registry = Registry(flows)
        self.config = config or FlowsConfig()
        self._engine: Engine | None = None
        self._intake: Intake | None = None
        self._scheduler: Scheduler | None = None
        self._beginning: dict[str, asyncio.Future[None]] = {}
        self._forgetting: asyncio.Task[None] | None = None
        # The task that stops everything, once somebody wants that.
        self._stopping: asyncio.Task[None] | None = None
        self._is_draining = False
        self._is_holding = False

    @property
    def engine(self) -> Engine:
        """What runs them; only while running."""
        if self._engine is None:
            if self.mail.store.is_open:
                self.mail.store.writer.check()
            raise UsageError(f"{self!r} is not running: start() it first")
        return self._engine

    # Life.

    async def start(self) -> None:
        """Begin to run: go on with what was at work when the process ended."""
        if self._engine is not None:
            raise UsageError(f"{self!r} runs already")
        claims = self.mail.store.claims
        if _CLAIM in claims:
            raise UsageError(f"{claims[_CLAIM]} at this store already: a node has its flows once")
        self.mail.store.claim(_CLAIM, "flows run")
        engine = self._engine = Engine(self.mail, self.registry, self.config)
        engine.admission.is_draining = self._is_draining
        if self._is_holding:
            engine.stepping.hold()
        try:
            CLAIMED.hit()
            await engine.open()
            # Those who were at work go on before anybody says anything new to them.
            self._intake = Intake(engine)
            await self._intake.start()
            await engine.admission.wake_idle()
            self._scheduler = Scheduler(self)
            await self._scheduler.start()
        except BaseException:
            await self.stop()
            raise
        self.mail.store.ended.add_done_callback(self._on_store_ended)
        loop = asyncio.get_running_loop()
        self._forgetting = loop.create_task(self._forget_old(), name="postroad old flows")

    def hold(self) -> None:
        """Call no functions of steps, and begin no transactions, until `release`.

        Flows that somebody of this process waits for go on nevertheless. It may be said before
        `start`, by a node that has more to start before functions can use it.
        """
        self._is_holding = True
        if self._engine is not None:
            self._engine.stepping.hold()

    def release(self) -> None:
        """Call the functions that were held back."""
        self._is_holding = False
        if self._engine is not None:
            self._engine.stepping.release()

    async def rest(self) -> None:
        """Stop the functions that run, and call no more.

        Flows can still be begun. They, and those that were at it, go on with the next start.
        """
        if self._engine is not None:
            await self._engine.stepping.halt()

    async def stop(self) -> None:
        """Put all flows away; they go on when this node is started again."""
        self._begin_to_stop()
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    def _on_store_ended(self, ended: asyncio.Future[StoreError]) -> None:
        """Put all flows away: what is in memory does not hold any more."""
        self._begin_to_stop()

    def _begin_to_stop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            loop = asyncio.get_running_loop()
            self._stopping = loop.create_task(self._stop(engine), name="postroad flows stop")

    async def _stop(self, engine: Engine) -> None:
        """A task of its own, so that it ends even if its caller is cancelled."""
        if self._scheduler is not None:
            await self._scheduler.stop()
            self._scheduler = None
        if self._forgetting is not None:
            self._forgetting.cancel()
            await asyncio.gather(self._forgetting, return_exceptions=True)
        if self._intake is not None:
            await self._intake.stop()
        await engine.close()
        if self._intake is not None:
            await self._intake.close()
            self._intake = None
        try:
            await engine.store.write(lambda ledger: tables.end_running(ledger.database))
        except PostroadError as error:
            # Then the next start counts this one as a crash.
            logger.debug("the end of the flows could not be noted: %s", error)
        engine.store.release(_CLAIM)

    async def _forget_old(self) -> None:
        failures = 0
        while True:
            pause_s = _FORGET_EVERY_S
            try:
                await self.forget_old()
                failures = 0
            except Exception as error:
                if self._engine is None:
                    return
                # A store that is away comes back, and nobody else would look again.
                failures += 1
                pause_s = backoff(
                    failures, initial_delay_s=1.0, max_delay_s=_FORGET_EVERY_S, jitter=0.5
                )
                level = logging.DEBUG if isinstance(error, StoreError) else logging.WARNING
                logger.log(level, "flows that ended long ago are kept for now: %r", error)
            await asyncio.sleep(pause_s)

    # Beginning.

    async def begin(
        self, definition: Definition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> FlowHandle[R]:
        """Begin a flow; returns when it cannot be lost any more.

        Raises:
            Draining: no new flows are begun now.
            UsageError: the arguments do not fit.
            Unrecordable: an argument cannot be written down.
        """
        return await self._begin(definition, None, args, kwargs)

    async def begin_as(
        self, client_id: str, definition: Definition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> FlowHandle[R]:
        """Begin a flow unless one was begun under that id; that one then, whatever it is given.

        So whoever does not know whether a flow was begun can safely say it again. Its result is
        kept until `forget`.
        """
        if not 0 < len(client_id) <= _CLIENT_ID_CHARS_MAX or not client_id.isprintable():
            raise ConfigError(
                f"a client id has 1 to {_CLIENT_ID_CHARS_MAX} characters that can be printed"
            )
        check_not_inside(self.engine.store)
        while (other := self._beginning.get(client_id)) is not None:
            await asyncio.wait((other,))
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._beginning[client_id] = over
        try:
            head = await self.engine.store.read(tables.find_client, client_id)
            if head is not None:
                return self._handle_of(head)
            return await self._begin(definition, client_id, args, kwargs)
        finally:
            del self._beginning[client_id]
            over.set_result(None)

    async def run(self, definition: Definition[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Begin a flow and wait for its result."""
        handle = await self._begin(definition, None, args, kwargs)
        return await handle.result()

    async def _begin(
        self,
        definition: Definition[Any, R],
        client_id: str | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> FlowHandle[R]:
        engine = self.engine
        arguments = definition.encode_arguments(args, kwargs)
        with (
            outside(engine.store),
            beginning(self.mail.service.name, definition.name) as span,
        ):
            await engine.store.writer.wait_for_room()
            head = self.new_head(definition, arguments, client_id)
            keep(head, span)
            await engine.admit(head, Admitted())
        return FlowHandle(self, head.id, head.name, client_id, definition.result_type)

    def new_head(
        self, definition: Definition[Any, Any], arguments: bytes, client_id: str | None
    ) -> Head:
        """What is known of a flow that is about to begin."""
        engine = self.engine
        if self._is_draining:
            raise Draining("this node begins no new flows now; try again later, or elsewhere")
        self.check_can_begin(definition)
        now = now_ms()
        timeout_s = definition.timeout_s
        return Head(
            id=engine.new_id(),
            name=definition.name,
            version=definition.version,
            status=Status.RUNNING if engine.admission.slots.free(definition) else Status.QUEUED,
            entropy=os.urandom(_ENTROPY_BYTES),
            started_ms=now,
            arguments=arguments,
            client_id=client_id,
            deadline_ms=None if timeout_s is None else now + round(timeout_s * 1000),
        )

    def check_can_begin(self, definition: Definition[Any, Any]) -> None:
        """Raise UsageError if nobody here can begin a flow."""
        if self.registry.find(definition.name) is not definition:
            raise UsageError(f"{definition!r} is none of the flows this node was given")
        if definition.responds_to is not None:
            raise UsageError(f"{definition!r} is begun by {definition.responds_to}, by nobody else")

    async def attach(self, client_id: str) -> FlowHandle[Any]:
        """The flow that was begun under an id; raises NoSuchFlow if none was."""
        head = await self.engine.store.read(tables.find_client, client_id)
        if head is None:
            raise NoSuchFlow(f"no flow was begun as {client_id!r}")
        return self._handle_of(head)

    async def handle(self, id: str) -> FlowHandle[Any]:
        """A flow by its own id; raises NoSuchFlow if there is none."""
        return self._handle_of(await self.head_of(id))

    def _handle_of(self, head: Head) -> FlowHandle[Any]:
        definition = self.registry.find(head.name)
        type = Any if definition is None else definition.result_type
        return FlowHandle(self, head.id, head.name, head.client_id, type)

    # Draining.

    @property
    def is_draining(self) -> bool:
        """Whether no new flows are begun now."""
        return self._is_draining

    async def drain(self, timeout: float | None = None) -> int:
        """Begin no new flows, here or for others; how many still run when the time is over.

        What others want to begin is held until `undrain`, or the next start.
        """
        self._is_draining = self.engine.admission.is_draining = True
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while left := self.engine.admission.slots.total:
            if until is not None and loop.time() >= until:
                break
            await asyncio.sleep(_DRAIN_LOOK_S)
        return left

    async def wind_down(self, timeout: float) -> int:
        """Begin no new flows and no new steps; how many steps still run when the time is over.

        For a node that is about to stop: flows go on where they are when it is started again, and
        those that sleep or wait need not be waited for.
        """
        self._is_draining = self.engine.admission.is_draining = True
        stepping = self.engine.stepping
        stepping.wind_down()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while stepping.running and loop.time() < until:  # noqa: ASYNC110  # As `drain` does.
            await asyncio.sleep(_DRAIN_LOOK_S)
        return stepping.running

    async def undrain(self) -> None:
        """Begin new flows again: those that were held, and what schedules have missed."""
        self._is_draining = self.engine.admission.is_draining = False
        await self.engine.admission.begin_held()
        if self._scheduler is not None:
            self._scheduler.stir()

    def __repr__(self) -> str:
        state = "not running" if self._engine is None else "running"
        return f"<Flows of {self.mail.service.name} {state}>"
