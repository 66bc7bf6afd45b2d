"""Messages to members by name, with the encoding of the caller.

The payload is exactly what the encoder returns: no envelope, no member name. Names are resolved to
addresses when a message is sent, and the receiver knows the sender by its connection. Nothing is
sent twice here: whether to try again is up to the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias, TypeVar, overload

import msgspec

from postroad.cluster.agent import ClusterAgent
from postroad.cluster.membership import Member
from postroad.core import ThrottledLogger
from postroad.core.errors import (
    MalformedPayloadError,
    MemberNotFoundError,
    MessagingError,
    Outcome,
    RemoteHandlerError,
    UsageError,
)
from postroad.net import PeerIfKnown, RawMessage

logger = logging.getLogger("postroad.cluster")

M = TypeVar("M")
R = TypeVar("R")

Encoder: TypeAlias = Callable[[M], bytes]
Decoder: TypeAlias = Callable[[bytes], M]
MemberMessageHandler: TypeAlias = Callable[[M, Member], object]
"""Called with a message and the member that sent it; may be a coroutine function."""
MemberRequestHandler: TypeAlias = Callable[[M, Member], R | Awaitable[R]]

SendFailures: TypeAlias = dict[str, MessagingError]
"""Errors by name of the members that a message was not sent to."""

_NAMES_LISTED = 10
# Coroutine handlers of datagrams that run at a time; further datagrams are dropped, as a full
# socket buffer would.
_RUNNING_MAX = 256
_WARN_INTERVAL_S = 5.0


def raw_bytes(payload: bytes) -> bytes:
    """Return the bytes unchanged: the identity codec."""
    return payload


class ClusterMessagingStatistics(msgspec.Struct):
    """Totals since the start."""

    unknown_senders: int = 0
    """Messages dropped or rejected because their sender is not a known member."""
    malformed: int = 0
    """Datagrams dropped because they could not be decoded."""
    failed: int = 0
    """Handlers of datagrams that raised."""
    dropped: int = 0
    """Datagrams dropped because too many were being handled."""


class ClusterMessaging:
    """Sends messages to members by name and handles messages of members.

    messaging = ClusterMessaging(agent)
    messaging.serve("price", lambda item, member: b"7")
    price = await messaging.request("beta", "price", b"apple")
    """

    def __init__(self, agent: ClusterAgent) -> None:
        self.agent = agent
        self._service = agent.service
        self._running: dict[asyncio.Future[object], None] = {}
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        self._statistics = ClusterMessagingStatistics()

    # Sending.

    @overload
    async def request(
        self,
        member: str,
        subject: str,
        message: M,
        *,
        encoder: Encoder[M] = ...,
        timeout: float | None = ...,
    ) -> bytes: ...

    @overload
    async def request(
        self,
        member: str,
        subject: str,
        message: M,
        *,
        encoder: Encoder[M] = ...,
        decoder: Decoder[R],
        timeout: float | None = ...,
    ) -> R: ...

    async def request(
        self,
        member: str,
        subject: str,
        message: M,
        *,
        encoder: Encoder[M] = raw_bytes,  # type: ignore[assignment]  # Bytes need no other.
        decoder: Decoder[Any] = raw_bytes,
        timeout: float | None = None,
    ) -> Any:
        """Send a request and return the reply.

        Raises:
            MemberNotFoundError: the member is unknown here, or does not know this node yet.
            MalformedPayloadError: the reply could not be decoded.
            MessagingError: one of its subclasses; `outcome` says whether the peer may have acted.
        """
        target = self._find(member, subject)
        payload = encoder(message)
        try:
            reply = await self._service.request(
                target.address, subject, payload, timeout=timeout, peer=PeerIfKnown(target.name)
            )
        except RemoteHandlerError as failure:
            raise _map_unknown_sender(failure) from None
        return decode_with(decoder, reply)

    async def send(
        self,
        member: str,
        subject: str,
        message: M,
        *,
        encoder: Encoder[M] = raw_bytes,  # type: ignore[assignment]  # Bytes need no other.
        reliable: bool = True,
    ) -> None:
        """Send a one-way message: over TCP, or as a datagram, which can be lost.

        If datagrams are off, everything goes over TCP.
        """
        await self._send(self._find(member, subject), subject, encoder(message), reliable)

    async def multicast(
        self,
        members: Iterable[str],
        subject: str,
        message: M,
        *,
        encoder: Encoder[M] = raw_bytes,  # type: ignore[assignment]  # Bytes need no other.
        reliable: bool = True,
    ) -> SendFailures:
        """Send one-way messages to several members, encoded once; return what failed."""
        if isinstance(members, str):
            raise UsageError(f"members must be a list of names, not the string {members!r}")
        payload = encoder(message)
        if not isinstance(payload, bytes):
            raise UsageError(f"an encoder must return bytes, not {type(payload).__name__}")
        names = list(dict.fromkeys(members))
        sends = (self._try_send(name, subject, payload, reliable) for name in names)
        errors = await asyncio.gather(*sends)
        return {name: error for name, error in zip(names, errors, strict=True) if error}

    async def broadcast(
        self,
        subject: str,
        message: M,
        *,
        encoder: Encoder[M] = raw_bytes,  # type: ignore[assignment]  # Bytes need no other.
        reliable: bool = True,
        include_self: bool = False,
    ) -> SendFailures:
        """Send one-way messages to all members, suspected ones included; return what failed."""
        local_name = self.agent.local_member.name
        names = [
            member.name
            for member in self.agent.members
            if include_self or member.name != local_name
        ]
        return await self.multicast(names, subject, message, encoder=encoder, reliable=reliable)

    async def _try_send(
        self, name: str, subject: str, payload: bytes, reliable: bool
    ) -> MessagingError | None:
        try:
            await self._send(self._find(name, subject), subject, payload, reliable)
        except MessagingError as error:
            return error
        return None

    async def _send(self, target: Member, subject: str, payload: bytes, reliable: bool) -> None:
        datagrams = self.agent.datagram_service
        if reliable or datagrams is None or target.name == self._service.name:
            await self._service.send(
                target.address, subject, payload, peer=PeerIfKnown(target.name)
            )
        else:
            datagrams.send_nowait(target.address, subject, payload)

    def _find(self, name: str, subject: str) -> Member:
        member = self.agent.member(name)
        if member is not None:
            return member
        names = [member.name for member in self.agent.members]
        more = f" and {len(names) - _NAMES_LISTED} more" if len(names) > _NAMES_LISTED else ""
        raise MemberNotFoundError(
            f"no member {name!r}; known are {', '.join(names[:_NAMES_LISTED])}{more}",
            subject=subject,
            peer=name,
        )

    # Handling.

    def subscribe(
        self,
        subject: str,
        handler: MemberMessageHandler[M],
        *,
        decoder: Decoder[M] = raw_bytes,  # type: ignore[assignment]  # Bytes need no other.
    ) -> None:
        """Call `handler(message, member)` for one-way messages to the subject.

        Messages arrive over TCP or as datagrams. Those of unknown senders are dropped.
        """
        self._service.subscribe(
            subject,
            lambda message: self._handle(message, handler, decoder),  # type: ignore[arg-type, return-value]
        )
        self.agent.subscribe_datagrams(
            subject, lambda message: self._on_datagram(message, handler, decoder)
        )

    @overload
    def serve(
        self, subject: str, handler: MemberRequestHandler[M, bytes], *, decoder: Decoder[M] = ...
    ) -> None: ...

    @overload
    def serve(
        self,
        subject: str,
        handler: MemberRequestHandler[M, R],
        *,
        decoder: Decoder[M] = ...,
        encoder: Encoder[R],
    ) -> None: ...

    def serve(
        self,
        subject: str,
        handler: MemberRequestHandler[Any, Any],
        *,
        decoder: Decoder[Any] = raw_bytes,
        encoder: Encoder[Any] = raw_bytes,
    ) -> None:
        """Call `handler(message, member)` for requests to the subject and send what it returns.

        Requests of unknown senders are rejected with MemberNotFoundError.
        """

        def handle(message: RawMessage) -> bytes | Awaitable[bytes]:
            result = self._handle(message, handler, decoder)
            if isinstance(result, Awaitable):
                return _encode_later(result, encoder)
            return encoder(result)

        self._service.serve(subject, handle)

    def unsubscribe(self, subject: str) -> bool:
        """Remove the handler of the subject; return False if there was none."""
        self.agent.unsubscribe_datagrams(subject)
        return self._service.unsubscribe(subject)

    def _handle(
        self, message: RawMessage, handler: Callable[[M, Member], R], decoder: Decoder[M]
    ) -> R:
        member = self._resolve_sender(message)
        return handler(decode_with(decoder, message.payload), member)

    def _resolve_sender(self, message: RawMessage) -> Member:
        """Return the member that sent a message; query unknown senders."""
        name = message.peer
        if name is None and self._service.uses_tls:
            # An address proves nothing here: a peer is known by the name in its certificate.
            name = ""
        elif name is None:
            # Older protocol versions carry the address only.
            names = self.agent.names_at(message.sender)
            name = names[0] if len(names) == 1 else ""
        member = self.agent.member(name)
        if member is None or (message.peer is not None and member.address != message.sender):
            self._statistics.unknown_senders += 1
            self.agent.contact(message.sender)
            raise MemberNotFoundError(
                f"sender {message.sender} is not a known cluster member", outcome=Outcome.REPLIED
            )
        return member

    def _on_datagram(
        self, message: RawMessage, handler: MemberMessageHandler[M], decoder: Decoder[M]
    ) -> None:
        if len(self._running) >= _RUNNING_MAX:
            self._statistics.dropped += 1
            return
        try:
            result = self._handle(message, handler, decoder)
        except MemberNotFoundError as error:
            self._warn("unknown sender", "datagram to %r dropped: %s", message.subject, error)
        except MalformedPayloadError as error:
            self._statistics.malformed += 1
            self._warn("malformed", "datagram to %r dropped: %s", message.subject, error)
        else:
            if isinstance(result, Awaitable):
                self._start(result, message.subject)

    def _start(self, awaitable: Awaitable[object], subject: str) -> None:
        task = self.agent.create_task(awaitable)
        self._running[task] = None
        task.add_done_callback(lambda done: self._on_done(done, subject))

    def _on_done(self, task: asyncio.Future[object], subject: str) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._statistics.failed += 1
            self._warn("failed", "handler of %r failed: %r", subject, error)

    def _warn(self, key: str, text: str, *args: object) -> None:
        self._log.log(key, asyncio.get_running_loop().time(), text, *args)

    def statistics(self) -> ClusterMessagingStatistics:
        return msgspec.structs.replace(self._statistics)

    def __repr__(self) -> str:
        return f"<ClusterMessaging of {self.agent!r}>"


def decode_with(decoder: Decoder[M], payload: bytes) -> M:
    """Decode with the caller's decoder; any error it raises means a malformed payload."""
    try:
        return decoder(payload)
    except Exception as error:
        raise MalformedPayloadError(f"{type(error).__name__}: {error}") from error


async def _encode_later(result: Awaitable[R], encoder: Encoder[R]) -> bytes:
    return encoder(await result)


def _map_unknown_sender(failure: RemoteHandlerError) -> MessagingError:
    """Return the failure; as MemberNotFoundError if the peer does not know this node."""
    if failure.remote_code != MemberNotFoundError.code:
        return failure
    return MemberNotFoundError(
        f"the peer does not know this node yet: {failure.detail}",
        peer=failure.peer,
        subject=failure.subject,
        elapsed_s=failure.elapsed_s,
        timeout_s=failure.timeout_s,
        outcome=Outcome.REPLIED,
    )
