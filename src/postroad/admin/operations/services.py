"""Services of all nodes: their actions and events, and calls to them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from postroad.admin.errors import InvalidRequest, NotFound, ProgramFailed, nearest
from postroad.core.errors import PostroadError
from postroad.services import Service, ValidationError
from postroad.services.action_schemas import action_schemas, told
from postroad.services.endpoints import EndpointList
from postroad.services.schema import ActionInfo, Visibility

from .limits import Seconds
from .naming import misnamed
from .office import Office
from .table import Effect, operation

logger = logging.getLogger("postroad.admin")

# Of a result that is a stream, so much is shown.
_STREAM_ITEMS_MAX = 1_000


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """A service, and the nodes that have it."""

    name: str
    """With its version, as in `v2.posts`."""
    version: str | None
    nodes: list[str]
    is_local: bool
    """Whether this node has it."""
    actions: list[str]
    events: list[str]
    """Names and patterns of events that it listens to."""


class ActionView(msgspec.Struct, frozen=True, kw_only=True):
    """An action, and the nodes that it can be called at."""

    name: str
    service: str
    nodes: list[str]
    available: int
    """How many of them take calls now."""
    schema: dict[str, Any] | None
    """JSON Schema of its params; None if nobody says what they are."""
    description: str
    is_cached: bool


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a name or pattern, and who listens to them."""

    name: str
    groups: list[str]
    """One node of each gets an event."""
    nodes: list[str]


class CallView(msgspec.Struct, frozen=True, kw_only=True):
    """What an action returned."""

    result: Any
    elapsed_ms: float
    node_id: str | None
    """The node that was asked for; None if any might answer."""
    is_cut: bool
    """Whether it is a stream of which only the first items are here."""
    warnings: list[str]
    """Params that the action does not know of, and has not looked at."""


class EmitView(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was sent."""

    event: str
    groups: list[str]
    """Who was known to listen."""
    is_durable: bool
    is_broadcast: bool


@operation("service.ls")
async def list_services(office: Office, internal: bool = False) -> list[ServiceView]:
    """Services of all nodes; those that every node has only if they are asked for."""
    registry = office.node.broker.registry
    found: dict[str, ServiceView] = {}
    for node, service in registry.services():
        if service.is_internal and not internal:
            continue
        known = found.get(service.full_name)
        if known is not None:
            known.nodes.append(node.id)
            known = msgspec.structs.replace(known, is_local=known.is_local or node.is_local)
        else:
            known = ServiceView(
                name=service.full_name,
                version=None if service.version is None else str(service.version),
                nodes=[node.id],
                is_local=node.is_local,
                actions=[it.name for it in service.actions if _is_shown(it)],
                events=[it.name for it in service.events],
            )
        found[service.full_name] = known
    return [found[name] for name in sorted(found)]


@operation("service.show")
async def show_service(office: Office, service: str) -> ServiceView:
    """One service, and the nodes that have it."""
    found = {it.name: it for it in await list_services(office, internal=True)}
    if service not in found:
        raise NotFound(f"there is no service {service!r}{nearest(service, found)}")
    return found[service]


@operation("service.actions")
async def list_actions(office: Office, service: str | None = None) -> list[ActionView]:
    """Actions that can be called, of all services or of one, with the schema of their params."""
    if service is not None:
        await show_service(office, service)
    broker = office.node.broker
    schemas = _all_own_schemas(office)
    return [
        view
        for it in sorted(broker.registry.actions, key=lambda it: it.name)
        for view in _actions(it, service, schemas.get(it.name))
    ]


def _all_own_schemas(office: Office) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for it in office.node.broker.services():
        schemas |= _own_schemas(it)
    return schemas


def _own_schemas(service: Service) -> dict[str, Any]:
    """What the methods of a service of this node say they take; found out once."""
    found = _schemas.get(service)
    if found is None:
        found = _schemas[service] = action_schemas(service)
    return found


_schemas: WeakKeyDictionary[Service, dict[str, Any]] = WeakKeyDictionary()


def _actions(
    found: EndpointList[ActionInfo], service: str | None, schema: dict[str, Any] | None
) -> Iterator[ActionView]:
    endpoints = [it for it in found if service in (None, it.service) and _is_shown(it.info)]
    if not endpoints or (service is None and found.name.startswith("$")):
        return
    first = endpoints[0]
    definition = first.info.definition
    yield ActionView(
        name=found.name,
        service=first.service,
        nodes=[it.node_id for it in endpoints],
        available=sum(it.is_accepting for it in endpoints),
        schema=schema or told(definition),
        description=str(definition.get("description", "")),
        is_cached=bool(definition.get("cache")),
    )


def _is_shown(action: ActionInfo) -> bool:
    return action.visibility is not Visibility.PRIVATE


@operation("service.events")
async def list_events(office: Office) -> list[EventView]:
    """Events that somebody listens to."""
    found: dict[str, EventView] = {}
    for it in office.node.broker.registry.events:
        if it.name.startswith("$"):
            continue
        view = found.setdefault(it.name, EventView(name=it.name, groups=[], nodes=[]))
        view.groups.append(it.group)
        view.nodes.extend(at.node_id for at in it if at.node_id not in view.nodes)
    return [found[name] for name in sorted(found)]


@operation("service.call", Effect.CHANGE)
async def call(
    office: Office,
    action: str,
    params: Any = None,
    node_id: str | None = None,
    timeout_s: Seconds = 30.0,
) -> CallView:
    """Call an action of any node, or of one, and show its result."""
    broker = office.node.broker
    unknown = misnamed(params, _schema_of(office, action))
    started = time.perf_counter()
    is_cut = False
    try:
        result = await broker.call(action, params, timeout_s=timeout_s, node_id=node_id)
        if isinstance(result, AsyncIterable):
            async with asyncio.timeout(timeout_s):
                result, is_cut = await _collect(result)
    except ValidationError as error:
        raise ValidationError(
            " ".join([f"{action} cannot take these parameters:", *unknown]),
            data=error.data,
            node_id=error.node_id,
        ) from None
    except (PostroadError, TimeoutError):
        raise
    except Exception as error:
        # Of an action of this node: others send theirs as errors of services.
        logger.warning("action %s failed", action, exc_info=True)
        raise ProgramFailed.of(f"action {action}", error) from error
    elapsed_ms = (time.perf_counter() - started) * 1000
    return CallView(
        result=msgspec.to_builtins(result, enc_hook=repr),
        elapsed_ms=elapsed_ms,
        node_id=node_id,
        is_cut=is_cut,
        warnings=[f"{action}: {it}" for it in unknown],
    )


def _schema_of(office: Office, action: str) -> dict[str, Any] | None:
    """What an action says it takes, if it does; raises NotFound if there is none."""
    found = {it.name: it for it in office.node.broker.registry.actions}
    endpoints = found.get(action)
    if endpoints is None:
        raise NotFound(f"there is no action {action!r:.300}{nearest(action, found)}")
    own: dict[str, Any] | None = _all_own_schemas(office).get(action)
    first = next(iter(endpoints), None)
    if own is not None or first is None:
        return own
    return told(first.info.definition)


async def _collect(stream: AsyncIterable[Any]) -> tuple[list[Any], bool]:
    items: list[Any] = []
    async for item in stream:
        if len(items) == _STREAM_ITEMS_MAX:
            return items, True
        items.append(item)
    return items, False


@operation("service.emit", Effect.CHANGE)
async def emit(
    office: Office,
    event: str,
    data: Any = None,
    durable: bool = False,
    broadcast: bool = False,
) -> EmitView:
    """Send an event to one node of each group, or to all of them; durably if that is wished."""
    broker = office.node.broker
    if durable and broadcast:
        raise InvalidRequest("an event is either durable or broadcast: durable ones go to groups")
    groups = sorted(broker.registry.events.groups_of(event))
    if broadcast:
        await broker.broadcast(event, data)
    else:
        await broker.emit(event, data, durable=durable)
    return EmitView(event=event, groups=groups, is_durable=durable, is_broadcast=broadcast)
