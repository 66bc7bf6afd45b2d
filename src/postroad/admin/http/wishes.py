"""What is asked for: an operation and its parameters, read from a query or a body."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from postroad.admin.errors import InvalidRequest
from postroad.admin.operations.table import OPERATIONS, Operation

from .errors import NoSuchOperation, TooLarge, UnknownForm

NODE = "node"
"""The parameter that every operation has: the member that shall do it."""

_FIELDS_MAX = 200
_INT_MAX = 2**63


class Wish(NamedTuple):
    """An operation, what was said to it, and who shall do it."""

    operation: Operation
    said: dict[str, Any]
    params: msgspec.Struct
    node: str | None

    @property
    def subjects(self) -> list[str]:
        """What it is done to, for the log: what must be said first, but no contents."""
        first = self.operation.parameters[:1]
        named = [self.said.get(it.name) for it in first if it.is_required]
        # Whoever asks must not write other lines into the log.
        return [it if it.isprintable() else repr(it) for it in named if isinstance(it, str)]

    @property
    def timeout_s(self) -> float:
        """The time that the operator gives it, if the operation can be told."""
        said = getattr(self.params, "timeout_s", None)
        return float(said) if isinstance(said, int | float) else 0.0


def find_operation(name: str) -> Operation:
    """An operation by name; raises NoSuchOperation."""
    try:
        return OPERATIONS.find(name)
    except InvalidRequest as error:
        raise NoSuchOperation(f"{error}; /api/v1/openapi.json lists all") from None


def read_query(request: Request) -> list[tuple[str, str]]:
    """What the query string says, in order; raises InvalidRequest if it cannot be read."""
    text = request.scope["query_string"].decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX)
    except ValueError as error:
        raise InvalidRequest(f"the query string cannot be read: {error}") from None


def wish_from_query(operation: Operation, pairs: Iterable[tuple[str, str]]) -> Wish:
    """What a query asks for; everything in it is text."""
    said: dict[str, Any] = {}
    node = None
    lists = {it.name for it in operation.parameters if is_list(it.type)}
    for name, value in pairs:
        if name == NODE:
            node = value
        elif name in lists:
            said.setdefault(name, []).append(value)
        elif name in said:
            raise InvalidRequest(f"{operation.name}: {name} is given twice")
        else:
            said[name] = value
    params = operation.read_params(said, strict=False)
    # As types from here on, so that it can be sent to others.
    kept = {name: getattr(params, name) for name in said}
    return Wish(operation, check_values(operation, kept), params, node)


def wish_from_body(operation: Operation, body: bytes, pairs: Iterable[tuple[str, str]]) -> Wish:
    """What a body asks for; only who shall do it is in the query."""
    node = None
    for name, value in pairs:
        if name != NODE:
            raise InvalidRequest(
                f"{operation.name} takes {name!r} in its body, a JSON object, not in the query"
            )
        node = value
    said = _read_object(body) if body.strip() else {}
    params = operation.read_params(said)
    return Wish(operation, check_values(operation, said), params, node)


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(body)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from None
    if not isinstance(said, dict):
        raise InvalidRequest("the body must be a JSON object of parameters")
    return said


def check_values(operation: Operation, said: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse what no store can keep."""
    for name, value in said.items():
        for it in value if isinstance(value, list) else (value,):
            if isinstance(it, str) and "\0" in it:
                raise InvalidRequest(f"{operation.name}: {name} contains a zero byte")
            if isinstance(it, float) and not math.isfinite(it):
                raise InvalidRequest(f"{operation.name}: {name}={it!r} is no finite number")
            if isinstance(it, int) and not -_INT_MAX <= it < _INT_MAX:
                raise InvalidRequest(f"{operation.name}: {name} is larger than 64 bits")
    return dict(said)


def is_list(kind: Any) -> bool:
    """Whether a parameter can be given several times."""
    info = msgspec.inspect.type_info(kind)
    kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return any(isinstance(it, msgspec.inspect.CollectionType) for it in kinds)


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The body of a request; raises Refused as soon as it is known to be too large."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > bytes_max:
        raise TooLarge(bytes_max)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            raise TooLarge(bytes_max)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json":
        raise UnknownForm(kind)
    return bytes(body)
