"""What can go wrong with services, below the tree of `postroad.core.errors`.

    ProtocolError
    ├── LocalProtocolError
    │   └── UnsendablePacket (TypeError)      it holds what cannot be serialized
    └── MalformedPayloadError
        └── VersionRefused                    a packet of another version of the protocol
    MessagingError
    └── MoleculerError                        a call or event did not succeed: 500
        ├── MoleculerRetryableError           trying again may help
        │   ├── MoleculerServerError
        │   ├── BrokerDisconnectedError       502 BAD_GATEWAY
        │   ├── ServiceNotFoundError          404 SERVICE_NOT_FOUND
        │   ├── ServiceNotAvailableError      404 SERVICE_NOT_AVAILABLE
        │   ├── RequestTimeoutError           504 REQUEST_TIMEOUT
        │   ├── RequestRejectedError          503 REQUEST_REJECTED
        │   └── QueueIsFullError              429 QUEUE_FULL
        ├── MoleculerClientError              400: the caller is wrong
        │   └── ValidationError               422 VALIDATION_ERROR
        ├── RequestSkippedError               514 REQUEST_SKIPPED
        ├── MaxCallLevelError                 500 MAX_CALL_LEVEL
        ├── ServiceSchemaError                500 SERVICE_SCHEMA_ERROR
        ├── BrokerOptionsError                500 BROKER_OPTIONS_ERROR
        ├── GracefulStopTimeoutError          500 GRACEFUL_STOP_TIMEOUT
        ├── ProtocolVersionMismatchError      500 PROTOCOL_VERSION_MISMATCH
        ├── InvalidPacketDataError            500 INVALID_PACKET_DATA
        ├── EventNotHandledError              500 EVENT_NOT_HANDLED
        └── RemoteError                       another node raised something of another name

The names are those of Moleculer, because they travel. What is `code` there is `status` here:
`code` tells all errors of Postroad from each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from postroad.core.errors import LocalProtocolError, MalformedPayloadError, MessagingError, Outcome

Status = int | str | None
"""A number; foreign errors may have a text, as `ECONNREFUSED`, or nothing."""


class UnsendablePacket(LocalProtocolError, TypeError):
    """A packet holds something that cannot be serialized; nothing was sent."""

    code = 8110


class VersionRefused(MalformedPayloadError):
    """A packet of another version of the protocol.

    Attributes:
        version: what it says its version is.
        sender: the node it is from, if it tells.
    """

    code = 8120

    def __init__(self, version: Any, sender: str | None = None) -> None:
        super().__init__(f"a packet of version {version!r:.40} from {sender!r:.80}")
        self.version = version
        self.sender = sender

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.version, self.sender)


class MoleculerError(MessagingError):
    """A call or event did not succeed. Raise it, or one below it, in actions.

    Attributes:
        name: what it is called on all nodes.
        status: the number of its sort, like those of HTTP.
        type: its sort in a word.
        data: what else is to tell.
        node_id: the node where it happened first; None for this one.
        stack: where it happened there.
    """

    code = 8200
    outcome = Outcome.REPLIED
    status: Status = 500
    type: str | None = None
    needs_data: ClassVar[bool] = False
    """Whether the other system makes its text from `data`, and cannot do without."""

    def __init__(
        self,
        message: str | None = None,
        status: Status = None,
        type: str | None = None,
        data: Any = None,
        *,
        node_id: str | None = None,
        retryable: bool | None = None,
        stack: str | None = None,
    ) -> None:
        super().__init__(self._text(data) if message is None else message, retryable=retryable)
        self.name = self.__class__.__name__
        self.data = data
        self.node_id = node_id
        self.stack = stack
        if status is not None:
            self.status = status
        if type is not None:
            self.type = type

    @classmethod
    def _text(cls, data: Any) -> str:
        """What it says if no message was given."""
        said = data if isinstance(data, Mapping) else {}
        return cls._told(_Said(said))

    @classmethod
    def _told(cls, said: _Said) -> str:
        return ""


class _Said(dict[str, Any]):
    """What `data` says; a missing entry reads as it would for the other system."""

    def __missing__(self, key: str) -> str:
        return "undefined"


class MoleculerRetryableError(MoleculerError):
    """Trying again may help."""

    code = 8210
    retryable = True


class MoleculerServerError(MoleculerRetryableError):
    """Something is wrong at the server, for now."""

    code = 8211


class BrokerDisconnectedError(MoleculerRetryableError):
    """There is no connection to the other nodes now. Nothing was sent."""

    code = 8212
    outcome = Outcome.NOT_SENT
    status = 502
    type = "BAD_GATEWAY"

    @classmethod
    def _told(cls, said: _Said) -> str:
        return (
            "The broker's transporter has disconnected. "
            "Please try again when a connection is reestablished."
        )


class ServiceNotFoundError(MoleculerRetryableError, LookupError):
    """Nobody has that action, or that service."""

    code = 8213
    status = 404
    type = "SERVICE_NOT_FOUND"
    needs_data = True

    @classmethod
    def _told(cls, said: _Said) -> str:
        if said.get("service"):
            version = f"{said['version']}." if said.get("version") else ""
            return f"Service '{version}{said['service']}' not found."
        if not said.get("action"):
            return "Service is not found."
        place = f" on '{said['nodeID']}' node" if said.get("nodeID") else ""
        return f"Service '{said['action']}' is not found{place}."


class ServiceNotAvailableError(MoleculerRetryableError):
    """The action is known, but no node that has it takes calls now."""

    code = 8214
    status = 404
    type = "SERVICE_NOT_AVAILABLE"
    needs_data = True

    @classmethod
    def _told(cls, said: _Said) -> str:
        place = f" on '{said['nodeID']}' node" if said.get("nodeID") else ""
        return f"Service '{said['action']}' is not available{place}."


class RequestTimeoutError(MoleculerRetryableError, TimeoutError):
    """No answer within the time of the call; the action may have run, or may still."""

    code = 8215
    outcome = Outcome.UNKNOWN
    status = 504
    type = "REQUEST_TIMEOUT"
    needs_data = True

    @classmethod
    def _told(cls, said: _Said) -> str:
        action, node = said["action"], said["nodeID"]
        return f"Request is timed out when call '{action}' action on '{node}' node."


class RequestRejectedError(MoleculerRetryableError):
    """The node was lost before it answered; the action may have run."""

    code = 8216
    outcome = Outcome.UNKNOWN
    status = 503
    type = "REQUEST_REJECTED"
    needs_data = True

    @classmethod
    def _told(cls, said: _Said) -> str:
        action, node = said["action"], said["nodeID"]
        return f"Request is rejected when call '{action}' action on '{node}' node."


class QueueIsFullError(MoleculerRetryableError):
    """Too many calls wait already; the action did not run."""

    code = 8217
    outcome = Outcome.NOT_SENT
    status = 429
    type = "QUEUE_FULL"
    needs_data = True

    @classmethod
    def _told(cls, said: _Said) -> str:
        action, node = said["action"], said["nodeID"]
        return f"Queue is full. Request '{action}' action on '{node}' node is rejected."


class MoleculerClientError(MoleculerError):
    """The caller is wrong, and trying the same again cannot help."""

    code = 8220
    status = 400


class ValidationError(MoleculerClientError, ValueError):
    """The parameters are not what the action takes; `data` lists what is wrong."""

    code = 8221
    status = 422
    type = "VALIDATION_ERROR"


class RequestSkippedError(MoleculerError):
    """The time of the call was over before it was made. Nothing was sent."""

    code = 8230
    outcome = Outcome.NOT_SENT
    status = 514
    type = "REQUEST_SKIPPED"
    needs_data = True

    @classmethod
    def _told(cls, said: _Said) -> str:
        action, node = said["action"], said["nodeID"]
        return f"Calling '{action}' is skipped because timeout reached on '{node}' node."


class MaxCallLevelError(MoleculerError):
    """Calls within calls within calls, more than are allowed. Nothing was sent."""

    code = 8240
    outcome = Outcome.NOT_SENT
    type = "MAX_CALL_LEVEL"
    needs_data = True

    @classmethod
    def _told(cls, said: _Said) -> str:
        level, node = said["level"], said["nodeID"]
        return f"Request level is reached the limit ({level}) on '{node}' node."


class ServiceSchemaError(MoleculerError):
    """A service is described in a way that makes no sense."""

    code = 8250
    type = "SERVICE_SCHEMA_ERROR"


class BrokerOptionsError(MoleculerError):
    """The options of a broker make no sense."""

    code = 8260
    type = "BROKER_OPTIONS_ERROR"


class GracefulStopTimeoutError(MoleculerError):
    """A service, or the whole broker, took too long to stop."""

    code = 8270
    type = "GRACEFUL_STOP_TIMEOUT"

    @classmethod
    def _told(cls, said: _Said) -> str:
        service = said["service"]
        if isinstance(service, Mapping):
            return f"Unable to stop '{service.get('name')}' service gracefully."
        return "Unable to stop ServiceBroker gracefully."


class ProtocolVersionMismatchError(MoleculerError):
    """A node speaks another version of the protocol."""

    code = 8280
    type = "PROTOCOL_VERSION_MISMATCH"
    needs_data = True

    @classmethod
    def _told(cls, said: _Said) -> str:
        return "Protocol version mismatch."


class InvalidPacketDataError(MoleculerError):
    """A packet makes no sense."""

    code = 8290
    type = "INVALID_PACKET_DATA"
    needs_data = True

    @classmethod
    def _told(cls, said: _Said) -> str:
        return "Invalid packet data."


class EventNotHandledError(MoleculerError):
    """Not every group has handled an event; those that did have done so for good.

    Attributes:
        failures: the error of each group that did not; of one whose outcome is not known, the
            handler may have run.
    """

    code = 8295
    type = "EVENT_NOT_HANDLED"

    def __init__(self, *args: Any, **said: Any) -> None:
        super().__init__(*args, **said)
        self.failures: Mapping[str, BaseException] = {}

    @classmethod
    def of(cls, event: str, failures: Mapping[str, BaseException]) -> EventNotHandledError:
        """The error for an event, with what went wrong in each group."""
        told = {group: str(error) for group, error in failures.items()}
        texts = "; ".join(f"{group}: {text}" for group, text in told.items())
        made = cls(f"event {event!r} was not handled by {texts}", data={"failures": told})
        made.failures = {**failures}
        made.retryable = all(getattr(it, "retryable", False) for it in failures.values())
        if any(getattr(it, "outcome", None) is Outcome.UNKNOWN for it in failures.values()):
            made.outcome = Outcome.UNKNOWN
        return made


class RemoteError(MoleculerError):
    """Another node raised something whose name nobody here knows; `name` tells it."""

    code = 8300
