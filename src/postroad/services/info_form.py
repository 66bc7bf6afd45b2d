"""The body of INFO packets, read and written.

Reading is lenient: a service, action or event that makes no sense is left out and told as a
problem, and the rest is taken. Nodes of the original system drop the whole packet instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from postroad.core.errors import MalformedPayloadError

from .schema import (
    ActionInfo,
    ClientInfo,
    EventInfo,
    NodeInfo,
    ServiceInfo,
    Version,
    fault_of_name,
    full_name_of,
)
from .told_schemas import KEY as SCHEMA_KEY
from .told_schemas import is_tellable

SERVICES_MAX = 1_000
"""Services of one node; what comes after them is left out."""
ENTRIES_MAX = 2_000
"""Actions, and events, of one service."""
PROBLEMS_MAX = 20
"""Problems that are told of one packet; a node full of nonsense must not fill the log."""
SEQ_MAX = 2**53 - 1
"""The largest whole number that JavaScript counts without error."""
TEXT_LENGTH_MAX = 1_024
"""Host names, addresses, versions."""
ADDRESSES_MAX = 256
"""Addresses of one node."""

_INSTANCE_LENGTH_MAX = 255
_PORT_MAX = 65_535


class ReadInfo(NamedTuple):
    """What was understood of an INFO, and what was not."""

    info: NodeInfo
    problems: tuple[str, ...]


def read_info(body: Mapping[str, Any]) -> ReadInfo:
    """Read the body of an INFO; raises MalformedPayloadError if nothing can be made of it."""
    services = body.get("services")
    if not isinstance(services, list | tuple):
        raise MalformedPayloadError(f"services must be a list, not {type(services).__name__}")
    problems: list[str] = []
    info = NodeInfo(
        instance_id=_read_instance_id(body.get("instanceID")),
        seq=_read_seq(body.get("seq")),
        services=tuple(_read_services(services, problems)),
        ip_list=_read_addresses(body.get("ipList")),
        hostname=_text(body.get("hostname")),
        client=_read_client(body.get("client")),
        config=_mapping(body.get("config")),
        metadata=_mapping(body.get("metadata")),
        port=_read_port(body.get("port")),
    )
    return ReadInfo(info, tuple(problems[:PROBLEMS_MAX]))


def write_info(info: NodeInfo) -> dict[str, Any]:
    """The body of an INFO, without sender and version, with its fields in the usual order."""
    body: dict[str, Any] = {
        "services": [write_service(service) for service in info.services],
        "ipList": list(info.ip_list),
        "hostname": info.hostname,
        "client": write_client(info.client),
        "config": dict(info.config),
        "instanceID": info.instance_id,
        "metadata": dict(info.metadata),
        "seq": info.seq,
    }
    if info.port is not None:
        body["port"] = info.port
    return body


# Writing.


def write_client(client: ClientInfo) -> dict[str, str]:
    """The software of a node."""
    return {"type": client.type, "version": client.version, "langVersion": client.lang_version}


def write_service(service: ServiceInfo) -> dict[str, Any]:
    """One service, with its fields in the usual order."""
    version = {} if service.version is None else {"version": service.version}
    return {
        "name": service.name,
        **version,
        "fullName": service.full_name,
        "settings": dict(service.settings),
        "metadata": dict(service.metadata),
        "actions": {action.name: action.written() for action in service.actions},
        "events": {event.name: event.written() for event in service.events},
    }


# Reading.


def _read_services(entries: Iterable[Any], problems: list[str]) -> Iterator[ServiceInfo]:
    names: set[str] = set()
    for number, entry in enumerate(entries):
        if number == SERVICES_MAX:
            problems.append(f"more than {SERVICES_MAX} services; the rest is left out")
            return
        service = _read_service(entry, f"service {number}", problems)
        if service is not None and service.full_name in names:
            problems.append(f"service {number}: {service.full_name!r} is there twice")
        elif service is not None:
            names.add(service.full_name)
            yield service


def _read_service(entry: Any, place: str, problems: list[str]) -> ServiceInfo | None:
    if not isinstance(entry, Mapping):
        problems.append(f"{place}: not an object")
        return None
    name, version = entry.get("name"), _read_version(entry.get("version"))
    settings = _mapping(entry.get("settings"))
    has_prefix = settings.get("$noVersionPrefix") is not True
    fault = fault_of_name(name)
    full_name = entry.get("fullName") or (
        None if fault else full_name_of(str(name), version, has_prefix=has_prefix)
    )
    fault = fault or fault_of_name(full_name)
    if fault is not None:
        problems.append(f"{place}: {fault}")
        return None
    return ServiceInfo(
        name=str(name),
        full_name=str(full_name),
        version=version,
        settings=settings,
        metadata=_mapping(entry.get("metadata")),
        actions=tuple(_read_actions(entry.get("actions"), f"actions of {name}", problems)),
        events=tuple(_read_events(entry.get("events"), f"events of {name}", problems)),
    )


def _read_actions(said: Any, place: str, problems: list[str]) -> Iterator[ActionInfo]:
    for name, entry in _read_entries(said, place, problems):
        raw_name = entry.get("rawName")
        definition = _without(entry, "name", "rawName")
        if SCHEMA_KEY in definition and not is_tellable(definition[SCHEMA_KEY]):
            del definition[SCHEMA_KEY]
            problems.append(f"{place}: {name}: its schema is none, or too large")
        yield ActionInfo(
            name=name,
            raw_name=raw_name if isinstance(raw_name, str) else "",
            definition=definition,
        )


def _read_events(said: Any, place: str, problems: list[str]) -> Iterator[EventInfo]:
    for name, entry in _read_entries(said, place, problems):
        group = entry.get("group") or ""
        if group and (fault := fault_of_name(group)):
            problems.append(f"{place}: {name}: group: {fault}")
        else:
            yield EventInfo(name=name, group=group, definition=_without(entry, "name", "group"))


def _read_entries(
    said: Any, place: str, problems: list[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The entries that have a name, which is what counts; they come as an object or as a list."""
    if said is None:
        return
    if not isinstance(said, Mapping | list | tuple):
        problems.append(f"{place}: neither an object nor a list")
        return
    names: set[str] = set()
    for number, entry in enumerate(said.values() if isinstance(said, Mapping) else said):
        if number == ENTRIES_MAX:
            problems.append(f"{place}: more than {ENTRIES_MAX}; the rest is left out")
            return
        name = entry.get("name") if isinstance(entry, Mapping) else None
        fault = fault_of_name(name) or (f"{name!r} is there twice" if name in names else None)
        if fault is not None:
            problems.append(f"{place}: entry {number}: {fault}")
        else:
            names.add(str(name))
            yield str(name), entry


def _read_instance_id(said: Any) -> str:
    if said is None:
        return ""
    if not isinstance(said, str) or len(said) > _INSTANCE_LENGTH_MAX:
        raise MalformedPayloadError(f"instanceID must be a text of up to {_INSTANCE_LENGTH_MAX}")
    return said


def _read_seq(said: Any) -> int:
    """A missing number, and 0, mean 1; serializers may turn it into a float."""
    if not said:
        return 1
    is_number = isinstance(said, int | float) and not isinstance(said, bool)
    if not is_number or not 0 < said <= SEQ_MAX:
        raise MalformedPayloadError(f"seq must be a number from 1 to {SEQ_MAX}, not {said!r:.40}")
    number: float = said
    return math.ceil(number)


def _read_version(said: Any) -> Version | None:
    if isinstance(said, str):
        return said or None
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return int(said) if said == said // 1 else said


def _read_port(said: Any) -> int | None:
    is_number = isinstance(said, int | float) and not isinstance(said, bool)
    return int(said) if is_number and 0 < said <= _PORT_MAX else None


def _read_addresses(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list | tuple):
        return ()
    return tuple(text for text in map(_text, said[:ADDRESSES_MAX]) if text)


def _read_client(said: Any) -> ClientInfo:
    client = _mapping(said)
    return ClientInfo(
        type=_text(client.get("type")),
        version=_text(client.get("version")),
        lang_version=_text(client.get("langVersion")),
    )


def _text(said: Any) -> str:
    return said[:TEXT_LENGTH_MAX] if isinstance(said, str) else ""


def _mapping(said: Any) -> Mapping[str, Any]:
    return said if isinstance(said, Mapping) else {}


def _without(entry: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in names}
