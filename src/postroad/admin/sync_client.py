"""A node's queues and flows for programs without an event loop: scripts, WSGI apps, notebooks.

It asks a running node over its HTTP API, so it needs no part in the cluster, no event loop, and
nothing to be started or stopped; what it has sent or started is in the node's store.
"""

from __future__ import annotations

import base64
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

import msgspec

from postroad.core.errors import (
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    PostroadError,
    ReplyTimeoutError,
)
from postroad.durable import OutgoingMessage, SendOptions
from postroad.flows import FlowDefinition, FlowKilledError, FlowStatus, FlowView
from postroad.flows.machine import values
from postroad.node import Queue

from .cards import Card
from .client import Client, Tls, find_nodes

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_POLL_S = 20.0
_RETRY_S = 0.2
# Nobody heard of the call.
_NOT_SENT = (ConnectError,)
# The call may have been done, or not.
_UNKNOWN = (ConnectionClosedError, ReplyTimeoutError)


class SyncFlowHandle(Generic[R]):
    """A flow at the node of a client; its result can be waited for."""

    __slots__ = ("_client", "_type", "client_id", "id")

    def __init__(self, client: SyncClient, id: str, client_id: str | None, type: Any) -> None:
        self._client = client
        self._type = type
        self.id = id
        self.client_id = client_id

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result, however often the node is restarted meanwhile.

        Args:
            timeout: seconds; without it, as long as the flow takes.

        Raises:
            FlowError: or whatever error the flow raised, as far as that can be made again here.
            FlowKilledError: an operator ended it.
            TimeoutError: it has not ended yet; it goes on, and can be waited for again.
            ConnectError: the node was away for longer than the client's timeout.
        """
        return cast(R, self._client._wait_for_result(self, timeout, self._type))

    def show(self) -> FlowView:
        """Where the flow is, as operators see it."""
        return msgspec.convert(self._client._call("flow.show", {"id": self.id}), FlowView)

    def signal(self, name: str, value: Any = None) -> None:
        """Send a signal; it waits at the flow until the code asks for it.

        Raises:
            ConnectionClosedError: the node ended meanwhile, and may have got it or not.
            WrongSignalError: the code asks for no such signal, or for one of another type.
        """
        said = {"id": self.id, "name": name, "value": msgspec.to_builtins(value)}
        self._client._call("flow.signal", said, is_repeatable=False)

    def cancel(self, reason: str = "cancelled by a client") -> None:
        """Raise FlowCancelledError in the code of the flow, which may undo what it has done."""
        self._client._call("flow.cancel", {"id": self.id, "reason": reason}, is_repeatable=False)

    @overload
    def query(self, name: str) -> Any: ...
    @overload
    def query(self, name: str, type: type[T]) -> T: ...
    def query(self, name: str, type: Any = Any) -> Any:
        """Call a query handler of the running flow, and return what it returns, as a type."""
        answer = self._client._call("flow.query", {"id": self.id, "name": name})
        return msgspec.convert(answer["value"], type, strict=False)

    def __repr__(self) -> str:
        return f"<SyncFlowHandle {self.id}>"


class SyncClient:
    """Sends to queues and starts flows of a running node, without an event loop.

        with SyncClient("http://127.0.0.1:8222", token) as client:
            client.send(orders, Order("tea"))
            handle = client.start_flow_with_id("order-17", deliver, Order("tea"))
            print(handle.result())

    Several threads may use it at a time. A call waits for a node that is away, as it is while it
    restarts, for as long as `timeout`.

    Args:
        url: where the node serves its API; by default that of the node that runs on this machine
            with its files in `data`.
        token: of the node; by default the one in `data`.
        node: which one, if several run there.
        data: the data directory of that node.
        timeout: seconds for each call, besides what it waits for a flow.
        tls: for `https`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        node: str | None = None,
        data: Path | str = ".postroad",
        timeout: float = 10.0,
        tls: Tls | None = None,
    ) -> None:
        if url is not None and node is not None:
            raise ConfigError("give url= or node=, not both: an url is that of one node")
        if timeout <= 0:
            raise ConfigError(f"timeout={timeout} must be above 0")
        self._url = url
        self._token = token
        self._node = node
        self._data = Path(data)
        self._timeout_s = timeout
        self._tls = tls
        self._lock = threading.Lock()
        self._client = None if url is None else Client(url, token, timeout_s=timeout, tls=tls)

    def send(
        self,
        queue: Queue[T],
        value: T,
        *,
        to: str | None = None,
        **options: Unpack[SendOptions],
    ) -> int:
        """Send a value to a durable queue; the message's id, once it cannot be lost any more.

        It is sent once even if the node ends in the middle of it: the call is repeated with the
        same idempotency key. The parameters are those of `Queue.send`.

        Raises:
            UsageError: the value is not of the queue's type.
            ConnectError: the node is away.
        """
        message = OutgoingMessage(
            queue=queue.name, body=queue.codec.encode(value), to=to or queue.to, **options
        )
        said = {
            "queue": message.queue,
            "body": "",
            "encoded": _base64(message.body),
            "peer": message.to,
            "key": message.key,
            "idempotency_key": message.idempotency_key or uuid.uuid4().hex,
            "delay_s": message.delay,
            "ttl_s": message.ttl,
            "priority": message.priority,
            "headers": dict(message.headers or {}),
        }
        return int(self._call("queue.post", said)["id"])

    def start_flow(
        self, definition: FlowDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncFlowHandle[R]:
        """Start a flow; returns when it cannot be lost any more.

        Raises:
            ConnectionClosedError: the node ended meanwhile, and may have started it or not; with
                `start_flow_with_id` this is no question.
        """
        return self._start(definition, None, args, kwargs)

    def start_flow_with_id(
        self,
        client_id: str,
        definition: FlowDefinition[P, R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> SyncFlowHandle[R]:
        """Start a flow unless one was started under that id; that one then.

        So it can be called again, also by another process, when nobody knows what became of a call.
        """
        return self._start(definition, client_id, args, kwargs)

    def run_flow(self, definition: FlowDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a flow and wait for its result, however long that takes."""
        return self._start(definition, None, args, kwargs).result()

    @overload
    def get_handle(self, id: str) -> SyncFlowHandle[Any]: ...
    @overload
    def get_handle(self, id: str, definition: FlowDefinition[P, R]) -> SyncFlowHandle[R]: ...
    def get_handle(self, id: str, definition: Any = None) -> SyncFlowHandle[Any]:
        """A flow by its id or client id; raises FlowNotFoundError if there is none."""
        shown = self._call("flow.show", {"id": id})
        type = Any if definition is None else definition.result_type
        return SyncFlowHandle(self, shown["id"], shown["client_id"], type)

    def close(self) -> None:
        """End the client; the node goes on, and so does all that was started."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SyncClient of {self._url or self._node or self._data}>"

    # Calls.

    def _start(
        self,
        definition: FlowDefinition[Any, R],
        client_id: str | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> SyncFlowHandle[R]:
        said = {
            "flow": definition.name,
            "client_id": client_id,
            "encoded": _base64(definition.encode_arguments(args, kwargs)),
        }
        shown = self._call("flow.begin", said, is_repeatable=client_id is not None)
        return SyncFlowHandle(self, shown["id"], client_id, definition.result_type)

    def _wait_for_result(
        self, handle: SyncFlowHandle[Any], timeout: float | None, type: Any
    ) -> Any:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left_s = _POLL_S if until is None else min(until - time.monotonic(), _POLL_S)
            said = {"id": handle.id, "is_exact": True, "timeout_s": max(left_s, 0.001)}
            answer = self._call("flow.result", said, until=until)
            if answer["encoded"] is not None:
                encoded = base64.b64decode(answer["encoded"])
                return _read_result(FlowStatus(answer["status"]), encoded, type)
            if answer["status"] == FlowStatus.UNREADABLE:
                raise PostroadError(f"flow {handle.id} cannot be read by this node: see its log")
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(
                    f"flow {handle.id} has not ended in {timeout:g} s: it is {answer['status']}"
                )

    def _call(
        self,
        operation: str,
        said: Mapping[str, Any],
        *,
        is_repeatable: bool = True,
        until: float | None = None,
    ) -> Any:
        """Have the node do something, as soon as it is there."""
        away_until = time.monotonic() + self._timeout_s
        if until is not None:
            away_until = max(min(away_until, until), time.monotonic())
        passing = (*_NOT_SENT, *_UNKNOWN) if is_repeatable else _NOT_SENT
        while True:
            try:
                return self._find_client().call(operation, said, timeout_s=_limit(said, self))
            except passing as error:
                if time.monotonic() + _RETRY_S >= away_until:
                    raise
                del error
            except PostroadError as error:
                # Those that pass: it has just started, or is about to stop.
                if not error.retryable or time.monotonic() + _RETRY_S >= away_until:
                    raise
            time.sleep(_RETRY_S)

    def _find_client(self) -> Client:
        """The client of the node; one that was found on this machine may be elsewhere by now."""
        if self._url is not None:
            assert self._client is not None
            return self._client
        card = self._find_card()
        with self._lock:
            if self._client is None or self._client.url != card.url.rstrip("/"):
                self._client = Client.of(card, self._data, token=self._token)
            return self._client

    def _find_card(self) -> Card:
        cards = [card for card in find_nodes(self._data) if self._node in (None, card.name)]
        if not cards:
            wanted = "no node" if self._node is None else f"no node {self._node!r}"
            raise ConnectError(
                f"{wanted} runs on this machine with its files in {self._data.resolve()}; start it "
                "with `postroad node start`, or give its url and token"
            )
        if len(cards) > 1:
            names = ", ".join(sorted(card.name for card in cards))
            raise ConfigError(f"several nodes run here: {names}; say which with node=")
        return cards[0]


def _limit(said: Mapping[str, Any], client: SyncClient) -> float:
    """Seconds for the answer to begin."""
    return client._timeout_s + float(said.get("timeout_s", 0))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _read_result(status: FlowStatus, encoded: bytes, type: Any) -> Any:
    if status is FlowStatus.COMPLETED:
        return values.decode_result(encoded, type)
    failure = msgspec.msgpack.decode(encoded, type=values.RecordedError)
    if status is FlowStatus.KILLED:
        raise FlowKilledError(failure.text)
    # A node must not choose what is imported here.
    raise values.restore_error(failure, may_import=False)
