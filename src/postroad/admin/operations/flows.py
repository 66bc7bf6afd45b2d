"""Flows: where each is in its life, what it did, and help for those that need it."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from postroad.admin.errors import InvalidRequest, NotFound, ProgramFailed, nearest_or_all
from postroad.core.errors import PostroadError, UsageError
from postroad.flows import (
    FlowDefinition,
    FlowNotFoundError,
    FlowService,
    FlowStatus,
    FlowView,
    ScheduleView,
    StepView,
)
from postroad.flows.history_files import FlowRecordView
from postroad.flows.machine import values
from postroad.flows.machine.status import TERMINAL_STATUSES

from .limits import First, Limit, Seconds
from .naming import misnamed
from .office import Office
from .table import Effect, explain, operation

logger = logging.getLogger("postroad.admin")


class DefinitionView(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that this node can begin, or that responds to others."""

    name: str
    version: int
    app: str
    responds_to: str | None
    """The flow that opens sessions with it; it can be begun here if there is none."""
    description: str
    parameters: dict[str, Any] | None
    """JSON Schema of its arguments; None if they have no such form."""
    concurrency: int | None
    """How many run at the same time; None for as many as are begun."""
    timeout_s: float | None
    running: int
    """How many run now."""


class FlowCountView(msgspec.Struct, frozen=True, kw_only=True):
    """How many flows there are."""

    statuses: dict[str, int]
    """By status; only those that occur."""
    is_draining: bool
    """Whether no new ones are begun."""


class DrainView(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a node that takes nothing new."""

    left: int
    """Flows that still run."""


class ResultView(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a flow."""

    id: str
    status: FlowStatus
    """Still `running`, or another one of those that have not ended, if the time was too short."""
    value: Any
    """What it returned, if it has."""
    error: str | None
    """Why it failed."""
    encoded: bytes | None
    """If it was asked for, in place of `value`: the value, or else the error, as MessagePack."""


class AnswerView(msgspec.Struct, frozen=True, kw_only=True):
    """What a flow answers."""

    value: Any


# Looking.


@operation("flow.ls")
async def list_flows(
    office: Office,
    status: FlowStatus | None = None,
    name: str | None = None,
    before: str | None = None,
    limit: Limit = 100,
    where: list[str] = [],  # noqa: B006
) -> list[FlowView]:
    """Flows, the newest first; `before` is the id of the last one seen.

    `where` has conditions on their attributes, as `customer=ann`; those that meet all are listed.
    """
    return await office.flows.list(status, name, before=before, limit=limit, where=where)


@operation("flow.counts")
async def count_flows(office: Office) -> FlowCountView:
    """How many flows there are of each status."""
    counts = await office.flows.counts()
    is_draining = office.is_running and office.node.flows.execution.is_draining
    return FlowCountView(
        statuses={status.value: count for status, count in counts.items()},
        is_draining=is_draining,
    )


@operation("flow.show")
async def show_flow(office: Office, id: str) -> FlowView:
    """One flow, by its id or by what it was begun as."""
    return await office.flows.show(id)


@operation("flow.history")
async def show_history(office: Office, id: str) -> list[StepView]:
    """The steps of a flow, in the order they were done."""
    return await office.flows.history(id)


@operation("flow.record")
async def show_record(office: Office, id: str, first: First = 0) -> FlowRecordView:
    """Steps of a flow as they are stored, from `first` on, as `postroad flow export` reads them."""
    return await office.flows.record(id, first)


@operation("flow.query")
async def query_flow(office: Office, id: str, name: str) -> AnswerView:
    """Call a query handler of a running flow, as set with `ctx.set_query_handler`."""
    try:
        answer = await office.node.flows.query(id, name)
    except PostroadError:
        raise
    except Exception as error:
        logger.warning("query %r of flow %s failed", name, id, exc_info=True)
        raise ProgramFailed.of(f"query {name!r} of flow {id}", error) from error
    return AnswerView(value=msgspec.to_builtins(answer, enc_hook=repr))


@operation("flow.result")
async def wait_for_result(
    office: Office, id: str, timeout_s: Seconds = 30.0, is_exact: bool = False
) -> ResultView:
    """Wait until a flow has ended, by its id or by what it was begun as; what came of it."""
    flows = office.node.flows
    handle = await flows.get_handle(id)
    try:
        state = await handle.wait(timeout_s)
    except TimeoutError:
        shown = await flows.admin.show(handle.id)
        return ResultView(id=shown.id, status=shown.status, value=None, error=None, encoded=None)
    failure = None if state.failure is None else state.failure.error
    encoded = state.result if failure is None else msgspec.msgpack.encode(failure)
    value = None if is_exact or state.result is None else values.decode_value(state.result)
    return ResultView(
        id=handle.id,
        status=state.status,
        value=msgspec.to_builtins(value, enc_hook=repr),
        error=None if failure is None else failure.text,
        encoded=encoded if is_exact else None,
    )


@operation("flow.definitions")
async def list_definitions(office: Office) -> list[DefinitionView]:
    """Flows that this node can begin, and those that respond to others."""
    flows = office.node.flows
    return [
        _view(definition, flows.engine.admission.slots.count(definition.name))
        for definition in sorted(flows.registry, key=lambda definition: definition.name)
    ]


def _view(definition: FlowDefinition[Any, Any], running: int) -> DefinitionView:
    return DefinitionView(
        name=definition.name,
        version=definition.version,
        app=definition.app,
        responds_to=definition.responds_to,
        description=definition.description,
        parameters=definition.arguments_schema(),
        concurrency=definition.concurrency,
        timeout_s=definition.timeout_s,
        running=running,
    )


# Changing.


@operation("flow.begin", Effect.CHANGE)
async def begin_flow(
    office: Office,
    flow: str,
    arguments: dict[str, Any] = {},  # noqa: B006
    client_id: str | None = None,
    encoded: bytes | None = None,
) -> FlowView:
    """Begin a flow; with a client id, unless one was begun as that already.

    Its arguments may also be `encoded`: those by place and those by name, as MessagePack.
    """
    flows = office.node.flows
    definition = flows.registry.find(flow)
    if definition is None:
        known = [definition.name for definition in flows.registry]
        raise NotFound(f"node {office.name} has no flow {flow!r}{nearest_or_all(flow, known)}")
    if client_id is None or not await _is_started(flows, client_id):
        _check_arguments(definition, arguments, encoded)
    args: list[Any] = []
    if encoded is not None:
        args, arguments = values.decode_value(encoded, tuple[list[Any], dict[str, Any]])
    if client_id is None:
        begun = await flows.start_flow(definition, *args, **arguments)
    else:
        begun = await flows.start_flow_with_id(client_id, definition, *args, **arguments)
    return await flows.admin.show(begun.id)


async def _is_started(flows: FlowService, client_id: str) -> bool:
    try:
        await flows.get_by_client_id(client_id)
    except FlowNotFoundError:
        return False
    return True


def _check_arguments(
    definition: FlowDefinition[Any, Any], arguments: dict[str, Any], encoded: bytes | None
) -> None:
    """Refuse what would park the flow at once."""
    if encoded is not None:
        try:
            definition.decode_arguments(encoded)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise InvalidRequest(
                f"flow {definition.name} cannot begin with these arguments: {error}"
            ) from None
        return
    wanted = definition.arguments_type()
    if wanted is None:
        return
    unknown = misnamed(arguments, definition.arguments_schema())
    wrong: list[str] = []
    try:
        msgspec.convert(arguments, wanted)
    except msgspec.ValidationError as error:
        wrong.append(explain(error))
    if unknown or wrong:
        told = " ".join([*unknown, *wrong])
        raise InvalidRequest(f"flow {definition.name} cannot begin with these arguments: {told}")


@operation("flow.retry", Effect.CHANGE)
async def retry_flow(office: Office, id: str) -> FlowView:
    """Try a flow again that is parked, or waits to be tried again."""
    flow = await office.flows.show(id)
    if flow.status in TERMINAL_STATUSES:
        raise UsageError(
            f"flow {id} has ended: it is {flow.status}; `postroad flow fork {id} STEP` begins it"
            " anew from one of its steps"
        )
    await office.flows.retry(id)
    return await office.flows.show(id)


@operation("flow.pause", Effect.CHANGE)
async def pause_flow(office: Office, id: str) -> FlowView:
    """Have a flow rest; what is said to it is kept."""
    await office.flows.pause(id)
    return await office.flows.show(id)


@operation("flow.resume", Effect.CHANGE)
async def resume_flow(office: Office, id: str) -> FlowView:
    """Have a flow go on that was paused."""
    await office.flows.resume(id)
    return await office.flows.show(id)


@operation("flow.cancel", Effect.CHANGE)
async def cancel_flow(
    office: Office, id: str, reason: str = "cancelled by an operator"
) -> FlowView:
    """Raise FlowCancelledError in a flow, so that it undoes what it has done and ends."""
    await office.flows.cancel(id, reason)
    return await office.flows.show(id)


@operation("flow.kill", Effect.DANGER, scope="flow.show")
async def kill_flow(office: Office, id: str, reason: str = "killed by an operator") -> FlowView:
    """End a flow; everybody it talks to is told that it has failed."""
    await office.flows.kill(id, reason)
    return await office.flows.show(id)


@operation("flow.fork", Effect.CHANGE)
async def fork_flow(office: Office, id: str, step: int) -> FlowView:
    """Begin a flow anew from one of its steps, as another flow; those before count as done."""
    return await office.flows.show(await office.flows.fork(id, step))


@operation("flow.signal", Effect.CHANGE)
async def signal_flow(office: Office, id: str, name: str, value: Any = None) -> FlowView:
    """Send a signal to a flow; it waits there until the code asks for it."""
    await office.flows.signal(id, name, value)
    return await office.flows.show(id)


@operation("flow.drain", Effect.CHANGE)
async def drain_flows(office: Office, timeout_s: Seconds = 30.0) -> DrainView:
    """Begin no new flows, here or for others, and wait for those that run."""
    return DrainView(left=await office.node.flows.execution.drain(timeout_s))


@operation("flow.undrain", Effect.CHANGE)
async def undrain_flows(office: Office) -> FlowCountView:
    """Begin new flows again: those that were held, and what schedules have missed."""
    await office.node.flows.execution.undrain()
    return await count_flows(office)


# Schedules.


@operation("flow.schedules")
async def list_schedules(office: Office) -> list[ScheduleView]:
    """Schedules: which flow each begins, and when next."""
    return await office.node.flows.schedules.list()


@operation("flow.pause-schedule", Effect.CHANGE)
async def pause_schedule(office: Office, name: str) -> ScheduleView:
    """Begin nothing for a schedule until it is resumed."""
    return await office.node.flows.schedules.pause(name)


@operation("flow.resume-schedule", Effect.CHANGE)
async def resume_schedule(office: Office, name: str) -> ScheduleView:
    """Go on with a schedule; what was due while it was paused is left out."""
    return await office.node.flows.schedules.resume(name)


@operation("flow.run-schedule", Effect.CHANGE)
async def run_schedule(office: Office, name: str) -> FlowView:
    """Begin the flow of a schedule at once, besides its times and even if it is paused."""
    flows = office.node.flows
    begun = await flows.schedules.trigger(name)
    return await flows.admin.show(begun.id)


@operation("flow.unschedule", Effect.DANGER)
async def unschedule(office: Office, name: str) -> list[ScheduleView]:
    """Forget a schedule, and show those that are left; flows that it has begun go on."""
    await office.node.flows.schedules.delete(name)
    return await office.node.flows.schedules.list()
