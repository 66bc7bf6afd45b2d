"""What services take and give, as an AsyncAPI document, for people and for tools.

Every action is a channel that requests come by, with another for its replies; every subscription
to events is one more, and so is every durable queue. Addresses are the names of actions, events and
queues: topics of a transporter are not in it, as they depend on nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from .config import BrokerConfig
from .local_services import ServiceBuilder
from .method_params import MethodHandler, hints_of
from .params_json import json_schema_of
from .schema import ActionInfo, Definition, EventInfo, ServiceInfo
from .service import Service, actions_of, events_of

ASYNCAPI_VERSION = "3.0.0"

Document = dict[str, Any]

_LOCAL_REFERENCE = "#/$defs/"
_REFERENCE = "#/components/schemas/{name}"
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.-]+")
_MISSING: Any = object()


class QueueChannel(NamedTuple):
    """A durable queue whose messages have a type."""

    name: str
    schema: Document
    """JSON Schema, with its own definitions."""
    is_consumed: bool
    """Whether the program consumes it; else it sends to it."""
    description: str = ""


def asyncapi_document(
    services: Iterable[Service],
    *,
    queues: Iterable[QueueChannel] = (),
    title: str = "Services",
    version: str = "1.0.0",
    description: str = "",
) -> Document:
    """The AsyncAPI document of some services.

    Params are described by type hints, or by the schema that an action has instead; results by
    what a method says that it returns. Whatever cannot be described so may be anything. Actions
    that only their own node may call are left out.

    Args:
        services: any; they need not be added to a broker.
        queues: durable queues that the program consumes, or sends to.
        title, version, description: of the whole.

    Raises:
        ConfigError: a service makes no sense.
    """
    builder = ServiceBuilder(BrokerConfig(), (), None, node_id="asyncapi")
    paper = _Paper()
    for service in services:
        info = builder.build(service).info
        _describe(paper, service, info)
    for queue in queues:
        paper.add_queue(queue)
    return paper.document(title, version, description)


def _describe(paper: _Paper, service: Service, info: ServiceInfo) -> None:
    methods = {name: (method, options.params) for name, method, options in actions_of(service)}
    for action in info.actions:
        if action.is_remote:
            paper.add_action(info, action, *methods[action.raw_name])
    handlers = {name: (method, options.params) for name, method, options in events_of(service)}
    for event in info.events:
        paper.add_event(info, event, *handlers[event.name])


class _Method(NamedTuple):
    """What a method takes and gives: a type, a finished schema, or neither."""

    takes: Any
    schema: Document | None
    gives: Any

    @classmethod
    def of(cls, method: Callable[..., Any], schema: Any, place: str) -> _Method:
        handler = MethodHandler(method, schema, place=place)
        takes = _MISSING if handler.type is None else handler.type
        gives = hints_of(method, place).get("return", _MISSING)
        return cls(takes, None if schema is None else json_schema_of(schema), gives)


class _Paper:
    """A document that grows. Schemas of types come last, since they refer to each other."""

    def __init__(self) -> None:
        self._channels: Document = {}
        self._operations: Document = {}
        self._places: set[str] = set()
        self._schemas: Document = {}
        # Each payload that a type describes, which is filled in at the end.
        self._typed: list[tuple[Document, Any]] = []

    def add_action(
        self, service: ServiceInfo, info: ActionInfo, function: Callable[..., Any], params: Any
    ) -> None:
        """A channel for the requests, one for the replies, and what happens there."""
        id = self._free_id(info.name)
        method = self._method(function, params, id)
        replies = self._free_id(f"{id}.reply")
        summary, text = _said_of(info.definition)
        request = self._message(f"{id}.request", "params", method.takes, method.schema)
        reply = self._message(replies, "result", method.gives, None)
        self._channels[id] = {"address": info.name, "messages": {"request": request}}
        self._channels[replies] = {"address": None, "messages": {"reply": reply}}
        self._operations[id] = {
            "action": "receive",
            "channel": _to("channels", id),
            **summary,
            **text,
            "tags": [{"name": service.full_name}],
            "messages": [_to("channels", id, "messages", "request")],
            "reply": {
                "channel": _to("channels", replies),
                "messages": [_to("channels", replies, "messages", "reply")],
            },
            **_more(info.definition),
        }

    def add_event(
        self, service: ServiceInfo, info: EventInfo, function: Callable[..., Any], params: Any
    ) -> None:
        """A channel for the events, and who gets them."""
        id = self._free_id(f"{service.full_name}_on_{info.name}")
        method = self._method(function, params, id)
        summary, text = _said_of(info.definition)
        message = self._message(f"{id}.event", "data", method.takes, method.schema)
        self._channels[id] = {"address": info.name, "messages": {"event": message}}
        self._operations[id] = {
            "action": "receive",
            "channel": _to("channels", id),
            **summary,
            **text,
            "tags": [{"name": service.full_name}],
            "messages": [_to("channels", id, "messages", "event")],
            "x-group": service.group_of(info),
        }

    def add_queue(self, queue: QueueChannel) -> None:
        """A channel for the messages of a queue."""
        id = self._free_id(f"queue.{queue.name}")
        summary, text = _said_of({"description": queue.description})
        self._schemas[id] = _moved(queue.schema, f"#/components/schemas/{id}/$defs/")
        payload = _to("components", "schemas", id)
        message = {"name": f"{id}.message", "title": queue.name, "payload": payload}
        self._channels[id] = {"address": queue.name, "messages": {"message": message}}
        self._operations[id] = {
            "action": "receive" if queue.is_consumed else "send",
            "channel": _to("channels", id),
            **summary,
            **text,
            "tags": [{"name": "durable queue"}],
            "messages": [_to("channels", id, "messages", "message")],
        }

    def document(self, title: str, version: str, description: str) -> Document:
        """The whole."""
        schemas = {**self._fill_in(), **self._schemas}
        info = {"title": title, "version": version}
        document: Document = {
            "asyncapi": ASYNCAPI_VERSION,
            "info": {**info, "description": description} if description else info,
            "defaultContentType": "application/json",
            "channels": self._channels,
            "operations": self._operations,
            **({"components": {"schemas": schemas}} if schemas else {}),
        }
        plain: Document = _with_plain_discriminators(document)
        return plain

    def _method(self, function: Callable[..., Any], params: Any, id: str) -> _Method:
        """What a method takes and gives; the types that are made for it need names of their own."""
        place = name = id.replace(".", "_")
        while place in self._places:
            place = f"{name}_{len(self._places)}"
        self._places.add(place)
        return _Method.of(function, params, place)

    def _message(self, name: str, title: str, type: Any, schema: Document | None) -> Document:
        payload = schema or {}
        if type is not _MISSING:
            self._typed.append((payload, type))
        return {"name": name, "title": title, "payload": payload}

    def _fill_in(self) -> Document:
        known = [(payload, type) for payload, type in self._typed if _is_describable(type)]
        if not known:
            return {}
        schemas, components = msgspec.json.schema_components(
            [type for _, type in known], schema_hook=_anything, ref_template=_REFERENCE
        )
        for (payload, _), schema in zip(known, schemas, strict=True):
            payload.update(schema)
        return components

    def _free_id(self, name: str) -> str:
        """An id from a name, which no other has."""
        id, number = _id_of(name), 1
        while id in self._channels:
            number += 1
            id = f"{_id_of(name)}_{number}"
        return id


def _moved(schema: Any, definitions: str) -> Any:
    """A schema whose references to its own definitions start at the root of the document."""
    if isinstance(schema, list):
        return [_moved(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: definitions + value.removeprefix(_LOCAL_REFERENCE)
        if key == "$ref"
        else _moved(value, definitions)
        for key, value in schema.items()
    }


def _with_plain_discriminators(value: Any) -> Any:
    """In AsyncAPI the discriminator of a union is the name of a property, in OpenAPI an object."""
    if isinstance(value, list):
        return [_with_plain_discriminators(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {key: _with_plain_discriminators(item) for key, item in value.items()}
    if isinstance(name := plain.get("discriminator"), dict) and "propertyName" in name:
        plain["discriminator"] = name["propertyName"]
    return plain


def _id_of(name: str) -> str:
    return _NOT_IN_IDS.sub("_", name)


def _to(*path: str) -> Document:
    return {"$ref": "#/" + "/".join(path)}


def _said_of(definition: Definition) -> tuple[Document, Document]:
    """The first line of a description, and the rest of it."""
    said = definition.get("description")
    if not isinstance(said, str) or not said.strip():
        return {}, {}
    first, _, rest = said.strip().partition("\n")
    return {"summary": first.strip()}, {"description": rest.strip()} if rest.strip() else {}


def _more(definition: Mapping[str, Any]) -> Document:
    """What callers may want to know of an action besides."""
    words = {"timeout": "x-timeout-ms", "cache": "x-cache", "visibility": "x-visibility"}
    return {there: definition[here] for here, there in words.items() if here in definition}


def _is_describable(type: Any) -> bool:
    try:
        msgspec.json.schema(type, schema_hook=_anything)
    except Exception:
        # Streams, and whatever else has no form in JSON.
        return False
    return True


def _anything(type: Any) -> Document:
    return {}
