"""The API in words that programs understand: OpenAPI 3.1, made from the table of operations."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import msgspec

from postroad._version import __version__
from postroad.admin.operations.table import OPERATIONS, Operation
from postroad.admin.problems import CONTENT_TYPE, Problem, make_problem

from .wishes import NODE

_REFERENCE = "#/components/schemas/{name}"
_JSON = "application/json"

# What can go wrong: with every request, and with some.
_ALWAYS = (400, 401, 404, 408, 409, 421, 500, 502, 503)
_FOR_CHANGES = (403, 413, 415, 422)
_TITLES = {
    400: "A parameter is wrong; it is named.",
    401: "No token, or a wrong one.",
    403: "This token, or this node, does not allow it.",
    404: "There is nothing of that name.",
    405: "Not by this method.",
    408: "The request did not arrive in time.",
    409: "Not as things are now.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The server is not called so.",
    422: "A value cannot be used.",
    500: "Nobody expected this; the log of the node tells more.",
    502: "The code of somebody else failed.",
    503: "Not now, or not in time; it may work later.",
}


def make_document(url: str | None = None) -> dict[str, Any]:
    """The whole document."""
    operations = [*OPERATIONS.values()]
    types = [it.result for it in operations] + [it.params for it in operations if not it.is_read]
    plain = [it.type for found in operations if found.is_read for it in found.parameters]
    schemas, components = msgspec.json.schema_components(
        [*types, *plain, Problem], ref_template=_REFERENCE, schema_hook=_anything
    )
    results = dict(zip([it.name for it in operations], schemas, strict=False))
    changes = [it.name for it in operations if not it.is_read]
    bodies = dict(zip(changes, schemas[len(operations) :], strict=False))
    values = iter(schemas[len(types) : -1])
    paths: dict[str, Any] = {"/api/v1/watch": {"get": _watch()}}
    for it in operations:
        about = _about(it, results[it.name])
        if it.is_read:
            said = [_parameter(p.name, next(values), p.default) for p in it.parameters]
            about["parameters"] = [*said, _NODE_PARAMETER]
            paths[_path(it)] = {"get": about}
        else:
            about["parameters"] = [_NODE_PARAMETER]
            about["requestBody"] = _body(it, bodies[it.name])
            paths[_path(it)] = {"post": about}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Postroad",
            "version": __version__,
            "description": "What operators see and do. A request needs a token: "
            "`Authorization: Bearer TOKEN`; the read token allows `GET` alone.",
        },
        "servers": [{"url": url or "/"}],
        "security": [{"token": []}],
        "tags": _tags(operations),
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {str(it): _problem(it, schemas[-1]) for it in _TITLES},
        },
    }


def _anything(_kind: type) -> dict[str, Any]:
    """The schema of what has none."""
    return {}


def _path(operation: Operation) -> str:
    return f"/api/v1/{operation.noun}/{operation.verb}"


def _tags(operations: Iterable[Operation]) -> list[dict[str, str]]:
    return [{"name": it} for it in sorted({operation.noun for operation in operations})]


def _about(operation: Operation, result: dict[str, Any]) -> dict[str, Any]:
    failures = _ALWAYS if operation.is_read else (*_ALWAYS, *_FOR_CHANGES)
    return {
        "operationId": operation.name,
        "tags": [operation.noun],
        "summary": operation.summary,
        "description": operation.help,
        "x-effect": operation.effect.value,
        "responses": {
            "200": {"description": "It is done.", "content": {_JSON: {"schema": result}}},
            **_failures(failures),
        },
    }


def _body(operation: Operation, schema: dict[str, Any]) -> dict[str, Any]:
    is_required = any(it.is_required for it in operation.parameters)
    return {"required": is_required, "content": {_JSON: {"schema": schema}}}


def _parameter(name: str, schema: dict[str, Any], default: Any) -> dict[str, Any]:
    is_required = default is inspect.Parameter.empty
    told = schema if is_required or default is None else {**schema, "default": default}
    return {"name": name, "in": "query", "required": is_required, "schema": told}


_NODE_PARAMETER = {
    "name": NODE,
    "in": "query",
    "description": "The member that shall do it; by default the one that is asked.",
    "schema": {"type": "string"},
}


def _failures(statuses: Iterable[int]) -> dict[str, Any]:
    return {str(it): {"$ref": f"#/components/responses/{it}"} for it in sorted(statuses)}


def _problem(status: int, schema: dict[str, Any]) -> dict[str, Any]:
    example = msgspec.to_builtins(make_problem(status, _TITLES[status]))
    told: dict[str, Any] = {
        "description": _TITLES[status],
        "content": {CONTENT_TYPE: {"schema": schema, "example": example}},
    }
    if status == 401:
        told["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return told


def _watch() -> dict[str, Any]:
    return {
        "operationId": "watch",
        "tags": ["watch"],
        "summary": "Results of read operations, each time they change, as server-sent events.",
        "description": "The event is the name of the operation, its data the result. A parameter "
        "of an operation is written with its name: `flow.show.id`. When an operation fails, the "
        "event is `problem`.",
        "parameters": [
            {
                "name": "operation",
                "in": "query",
                "required": True,
                "schema": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            },
            _NODE_PARAMETER,
        ],
        "responses": {
            "200": {
                "description": "It goes on until the client leaves.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            **_failures((400, 401, 403, 404, 408, 421, 503)),
        },
    }
