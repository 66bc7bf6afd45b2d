"""Requests to flows, of transactions and of other flows: messages in a queue of the node.

They are sent with the commit of the transaction, or of the step of the flow.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from postroad.core.errors import ConfigError, Reject, UsageError
from postroad.durable.producer import OutgoingMessage, StartableFlow
from postroad.flows.machine import values
from postroad.flows.machine.requests import (
    GENERATED_ID_PREFIX,
    ChildEnded,
    FlowRequest,
    SignalRequest,
    StartRequest,
)
from postroad.flows.sessions.messages import is_valid_name

QUEUE = "flows.requests"

_CLIENT_ID_CHARS_MAX = 512
# A key may have 1,024 bytes, and a character up to 4.
_KEY_CHARS_MAX = 256


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FlowRequest] = msgspec.msgpack.Decoder(FlowRequest)


class FlowRequests:
    """Encodes the requests of transactions as messages."""

    def start(
        self,
        client_id: str | None,
        definition: StartableFlow[...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[str, OutgoingMessage]:
        """Return the message that starts a flow, and the client id of the flow."""
        if client_id is None:
            client_id = GENERATED_ID_PREFIX + secrets.token_hex(16)
        else:
            check_client_id(client_id)
        arguments = definition.encode_arguments(args, kwargs)
        request = StartRequest(client_id, definition.name, arguments)
        return client_id, request_message(request)

    def signal(self, flow: str, name: str, value: Any) -> OutgoingMessage:
        """Return the message that sends a signal."""
        check_client_id(flow)
        return request_message(SignalRequest(flow, name, encode_signal(name, value)))


def request_message(request: FlowRequest) -> OutgoingMessage:
    """Return the message of a request; requests for one flow are handled in order."""
    match request:
        case StartRequest(client_id=flow) | ChildEnded(parent=flow):
            pass
        case _:
            flow = request.flow
    body = _encoder.encode(request)
    return OutgoingMessage(queue=QUEUE, body=body, key=flow[:_KEY_CHARS_MAX])


def decode_request(body: bytes) -> FlowRequest:
    """Decode a request; raises Reject if it is invalid."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Reject(f"not a request to a flow: {error}") from None


def encode_signal(name: str, value: Any) -> bytes:
    """Encode the value of a signal; raises UsageError if its name is invalid."""
    if not is_valid_name(name):
        raise UsageError(f"no signal can be called {name!r}: 1 to 200 characters")
    return values.encode_value(value, f"signal {name!r}")


def check_client_id(client_id: str) -> None:
    """Raise ConfigError if a client id is invalid."""
    if not 0 < len(client_id) <= _CLIENT_ID_CHARS_MAX or not client_id.isprintable():
        raise ConfigError(
            f"a client id has 1 to {_CLIENT_ID_CHARS_MAX} characters that can be printed"
        )
