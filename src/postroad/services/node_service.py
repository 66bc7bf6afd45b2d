"""What every node tells of itself and of the cluster: the service `$node`.

The answers have the form that nodes of the original system give, for the tools that read them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from .context import Context
from .describing import published, sendable_object
from .endpoints import EndpointList
from .health import health
from .info_form import write_client, write_service
from .nodes import NodeRecord
from .options_form import write_options
from .service import Service, action

if TYPE_CHECKING:
    from .registry import Registry

AnyList = EndpointList[Any]
Names = str | list[str] | None


class NodeService(Service):
    """Lists nodes, services, actions and events, and tells how this node is."""

    name = "$node"

    @property
    def _registry(self) -> Registry:
        return self.broker.registry

    @action(tracing=False)
    def list(self, ctx: Context, withServices: bool = False, onlyAvailable: bool = False) -> Any:
        """All nodes."""
        nodes = self._registry.nodes(only_available=onlyAvailable)
        told = [_node(it) for it in nodes]
        if withServices:
            for node in told:
                offered = (it for at, it in self._registry.services() if at.id == node["id"])
                node["services"] = [write_service(published(it)) for it in offered]
        return told

    @action(tracing=False)
    def services(
        self,
        ctx: Context,
        onlyLocal: bool = False,
        skipInternal: bool = False,
        withActions: bool = False,
        withEvents: bool = False,
        onlyAvailable: bool = False,
        grouping: bool = True,
    ) -> Any:
        """All services, each with the nodes that have it, or one entry for each node."""
        rows: dict[Any, dict[str, Any]] = {}
        for node, service in self._registry.services():
            if (onlyLocal and not node.is_local) or (skipInternal and service.is_internal):
                continue
            key = service.full_name if grouping else (service.full_name, node.id)
            row = rows.get(key)
            if row is None:
                row = rows[key] = write_service(published(service))
                row |= {"local": node.is_local, "available": True}
                row |= {"nodeID": node.id}
                if not withActions:
                    del row["actions"]
                if not withEvents:
                    del row["events"]
            if grouping:
                row.pop("nodeID", None)
                row.setdefault("nodes", []).append(node.id)
        return [*rows.values()]

    @action(tracing=False)
    def actions(
        self,
        ctx: Context,
        onlyLocal: bool = False,
        skipInternal: bool = False,
        withEndpoints: bool = False,
        onlyAvailable: bool = False,
    ) -> Any:
        """All actions."""
        lists = _wanted(self._registry.actions, onlyLocal, skipInternal, onlyAvailable)
        return [_list(it, "action", with_endpoints=withEndpoints) for it in lists]

    @action(tracing=False)
    def events(
        self,
        ctx: Context,
        onlyLocal: bool = False,
        skipInternal: bool = False,
        withEndpoints: bool = False,
        onlyAvailable: bool = False,
    ) -> Any:
        """All subscriptions to events."""
        lists = _wanted(self._registry.events, onlyLocal, skipInternal, onlyAvailable)
        return [_list(it, "event", with_endpoints=withEndpoints) for it in lists]

    @action(tracing=False)
    def health(self, ctx: Context) -> Any:
        """How the machine and the process of this node are."""
        info = self._registry.local.info
        return health(info.ip_list, write_client(info.client))

    @action(tracing=False)
    def options(self, ctx: Context) -> Any:
        """The settings of this node, by the names of the original."""
        return {"nodeID": self.broker.node_id, **write_options(self.broker.config)}

    @action(tracing=False)
    def metrics(
        self, ctx: Context, types: Names = None, includes: Names = None, excludes: Names = None
    ) -> Any:
        """What this node counted; names may be patterns."""
        found = _metrics("postroad", self.broker.statistics(), round(time.time() * 1000))
        return [
            it
            for it in found
            if (types is None or it["type"] in _listed(types))
            and (includes is None or _is_named(it["name"], includes))
            and (excludes is None or not _is_named(it["name"], excludes))
        ]


def _node(node: NodeRecord) -> dict[str, Any]:
    info = node.info
    offline_since = node.offline_since
    return {
        "id": node.id,
        "instanceID": node.instance_id,
        "available": node.is_available,
        "local": node.is_local,
        "lastHeartbeatTime": round(node.last_seen),
        "config": sendable_object(info.config),
        "client": write_client(info.client),
        "metadata": sendable_object(info.metadata),
        "ipList": [*info.ip_list],
        "port": info.port,
        "hostname": info.hostname,
        "udpAddress": None,
        "cpu": node.cpu,
        "cpuSeq": node.cpu_seq or None,
        "seq": node.seq,
        "offlineSince": None if offline_since is None else round(offline_since),
    }


def _wanted(
    lists: Iterable[AnyList], only_local: bool, skip_internal: bool, only_available: bool
) -> Iterator[AnyList]:
    for it in lists:
        if only_local and not it.has_local:
            continue
        if skip_internal and it.name.startswith("$"):
            continue
        if only_available and not it.available:
            continue
        yield it


def _list(found: AnyList, kind: str, *, with_endpoints: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"name": found.name}
    if found.group:
        told["group"] = found.group
    told |= {
        "count": len(found),
        "hasLocal": found.has_local,
        "available": bool(found.available),
    }
    first = next(iter(found), None)
    if first is not None:
        told[kind] = first.info.written()
    if with_endpoints:
        told["endpoints"] = [
            {"nodeID": it.node.id, "state": it.is_accepting, "available": it.is_accepting}
            for it in found
        ]
    return told


def _metrics(name: str, counted: Any, now_ms: int) -> Iterator[dict[str, Any]]:
    """Numbers within numbers, one by one."""
    if isinstance(counted, dict):
        for key, value in counted.items():
            yield from _metrics(f"{name}.{key}", value, now_ms)
    elif isinstance(counted, int | float):
        values: Any = [{"value": counted, "labels": {}, "timestamp": now_ms}]
        yield {"type": "gauge", "name": name, "labelNames": [], "values": values}


def _listed(said: str | Iterable[str]) -> Iterable[str]:
    return [said] if isinstance(said, str) else said


def _is_named(name: str, patterns: str | Iterable[str]) -> bool:
    return any(fnmatchcase(name, it) for it in _listed(patterns))
