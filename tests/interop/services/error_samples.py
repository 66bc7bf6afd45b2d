"""One error of every class that both systems have."""

from __future__ import annotations

from typing import Any

from postroad.services import errors
from postroad.services.errors import MoleculerError

PLACE = {"action": "v1.desk.ask", "nodeID": "py-1"}
FULL = ["It broke", 555, "BROKEN", {"part": 7}]
# What the constructors of the other system take.
ARGUMENTS: dict[str, list[Any]] = {
    "BrokerDisconnectedError": [],
    "BrokerOptionsError": ["It broke", {"part": 7}],
    "GracefulStopTimeoutError": [{"service": {"name": "desk", "version": 2}}],
    "InvalidPacketDataError": [PLACE],
    "MaxCallLevelError": [{"level": 7, "nodeID": "py-1"}],
    "MoleculerClientError": FULL,
    "MoleculerError": FULL,
    "MoleculerRetryableError": FULL,
    "MoleculerServerError": FULL,
    "ProtocolVersionMismatchError": [{"nodeID": "py-1", "actual": "5", "received": "4"}],
    "QueueIsFullError": [{**PLACE, "size": 7, "limit": 7}],
    "RequestRejectedError": [PLACE],
    "RequestSkippedError": [PLACE],
    "RequestTimeoutError": [PLACE],
    "ServiceNotAvailableError": [PLACE],
    "ServiceNotFoundError": [PLACE],
    "ServiceSchemaError": ["It broke", {"part": 7}],
    "ValidationError": ["It broke", "BROKEN", [{"field": "a", "type": "required"}]],
}
# For the other system it is any error.
UNKNOWN_THERE = {"BrokerDisconnectedError"}


def make_error(name: str) -> MoleculerError:
    """The same error here."""
    kind: type[MoleculerError] = getattr(errors, name)
    match ARGUMENTS[name]:
        case [str(message), int(status), str(type_), data]:
            return kind(message, status, type_, data)
        case [str(message), str(type_), data]:
            return kind(message, type=type_, data=data)
        case [str(message), data]:
            return kind(message, data=data)
        case [data]:
            return kind(data=data)
    return kind()
