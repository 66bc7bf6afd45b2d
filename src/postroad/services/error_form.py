"""Errors on their way from node to node.

An error keeps its name, text, status, type, data and where it happened first, over any number of
hops. Nodes of the original system make the text of some anew from `data`, and a caller waits for
ever if that is no object: it always is one here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroad.core.errors import PostroadError

from . import errors
from .errors import MoleculerError, RemoteError, Status

MESSAGE_LENGTH_MAX = 16 * 1_024
STACK_LENGTH_MAX = 64 * 1_024
NAME_LENGTH_MAX = 255

_FOREIGN_NAME = "Error"
_FOREIGN_STATUS = 500

_CLASSES: dict[str, type[MoleculerError]] = {
    it.__name__: it
    for it in vars(errors).values()
    if isinstance(it, type) and issubclass(it, MoleculerError) and it is not RemoteError
}


def error_to_wire(
    error: BaseException,
    *,
    node_id: str,
    action: str | None = None,
    stack: str | None = None,
    has_data: bool = True,
) -> dict[str, Any]:
    """The object that tells of an error, fields in the order of the original system.

    Args:
        error: what was raised; of errors that are not Moleculer's only name and text are told.
        node_id: this node; an error that came from another one keeps that.
        action: the action that raised it, for errors that must name one.
        stack: where it was raised, if others may know.
        has_data: false leaves out data that turned out not to be serializable.
    """
    if not isinstance(error, MoleculerError):
        return _foreign_to_wire(error, node_id, stack)
    origin = error.node_id or node_id
    fields = {
        "name": error.name[:NAME_LENGTH_MAX],
        "message": _clean(error.detail)[:MESSAGE_LENGTH_MAX],
        "nodeID": origin,
        "code": error.status,
        "type": error.type,
        "retryable": error.retryable,
        "stack": _cut(error.stack or stack),
        "data": _data_of(error, origin, action) if has_data else _least_data(error, origin, action),
    }
    return {name: value for name, value in fields.items() if value is not None}


def error_from_wire(wire: Any, *, sender: str) -> MoleculerError:
    """The error another node told of. Anything is taken: somebody waits for the answer."""
    told: Mapping[str, Any] = wire if isinstance(wire, Mapping) else {}
    name = _text(told.get("name"), NAME_LENGTH_MAX) or _FOREIGN_NAME
    retryable = told.get("retryable")
    error = _CLASSES.get(name, RemoteError)(
        _text(told.get("message"), MESSAGE_LENGTH_MAX) or "",
        _status(told.get("code")),
        _text(told.get("type"), NAME_LENGTH_MAX),
        told.get("data"),
        node_id=_text(told.get("nodeID"), NAME_LENGTH_MAX) or sender,
        retryable=retryable if isinstance(retryable, bool) else None,
        stack=_text(told.get("stack"), STACK_LENGTH_MAX),
    )
    error.name = name
    if isinstance(error, RemoteError) and told.get("code") is None:
        error.status = None
    return error


def _foreign_to_wire(error: BaseException, node_id: str, stack: str | None) -> dict[str, Any]:
    fields = {
        "name": _foreign_name(error)[:NAME_LENGTH_MAX],
        "message": _said_by(error)[:MESSAGE_LENGTH_MAX],
        "nodeID": node_id,
        "code": _FOREIGN_STATUS,
        "retryable": error.retryable if isinstance(error, PostroadError) else False,
        "stack": _cut(stack),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _foreign_name(error: BaseException) -> str:
    """Its name, with the module's if another node would take it for something else."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__name__}" if kind.__name__ in _CLASSES else kind.__name__


def _said_by(error: BaseException) -> str:
    """What it says; somebody else wrote its `__str__`."""
    try:
        return _clean(str(error))
    except Exception:
        return f"{type(error).__name__}, whose text cannot be told"


def _data_of(error: MoleculerError, node_id: str, action: str | None) -> Any:
    least = _least_data(error, node_id, action)
    if least is None:
        return error.data
    return {**least, **(error.data if isinstance(error.data, Mapping) else {})}


def _least_data(error: MoleculerError, node_id: str, action: str | None) -> dict[str, Any] | None:
    return {"action": action, "nodeID": node_id} if _needs_data(error) else None


def _needs_data(error: MoleculerError) -> bool:
    """By its name, since that is what another node looks at."""
    known = _CLASSES.get(error.name)
    return known is not None and known.needs_data


def _clean(text: str) -> str:
    """Without halves of characters, which cannot be serialized."""
    return text.encode(errors="replace").decode()


def _text(said: Any, length_max: int) -> str | None:
    return said[:length_max] if isinstance(said, str) else None


def _status(said: Any) -> Status:
    if isinstance(said, float) and said.is_integer():
        return int(said)
    if isinstance(said, bool) or not isinstance(said, int | str):
        return None
    return said[:NAME_LENGTH_MAX] if isinstance(said, str) else said


def _cut(stack: str | None) -> str | None:
    return None if stack is None else stack[:STACK_LENGTH_MAX]
