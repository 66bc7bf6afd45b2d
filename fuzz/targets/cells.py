"""Cells: envelopes, news of routes and failures, and what a core does with them in a tunnel."""

from __future__ import annotations

import asyncio
import math
from typing import cast

import msgspec

from fuzz.target import Target, prefixes, require
from postroad.cells import (
    CellAddress,
    CellPath,
    CellsConfig,
    FunctionCell,
    NoRouteError,
    Role,
    Route,
)
from postroad.cells.addresses import DomainInfo
from postroad.cells.delivery.cell_runner import CellRunner
from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.domain_links import MESSAGE, ROUTES, DomainLink, DomainLinks
from postroad.cells.delivery.envelope import Envelope, MessageKind, make_reply
from postroad.cells.delivery.envelope_codec import (
    decode_envelope,
    decode_fast,
    encode_envelope,
    route_prefix,
)
from postroad.cells.delivery.failure import DeliveryFailure, decode_failure, make_error_reply
from postroad.cells.delivery.propagator import RoutePropagator, RoutingUpdateQueue
from postroad.cells.messages import PongBody, decode_body, decode_pong
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementQuery,
    AdvertisementUpdate,
    CoreReport,
    KnownAdvertisement,
    RouteAdvertisement,
    RoutingUpdate,
    ShutdownNotice,
    compare_reports,
    decode_report,
    decode_routing_update,
    encode_routing_update,
)
from postroad.core import Address
from postroad.core.errors import ConnectionClosedError, MalformedPayloadError
from postroad.net import Tunnel
from postroad.wire import HelloFrame, RequestFrame

_INCARNATION = 7
_CONFIG = CellsConfig()
_SEND_BYTES_MAX = 1 << 20
_CONTENTS = ("", "text", "json", "msgpack", "command", "unknown")
# A message is sent on once, or answered once; here twice, since each input comes twice.
_POSTED_MAX = 4


# Decoders.


def check_envelope(data: bytes) -> None:
    """Any bytes are an envelope or malformed, cut off or not."""
    for it in (*prefixes(data), data):
        try:
            envelope = decode_envelope(it)
        except MalformedPayloadError:
            continue
        again = decode_envelope(encode_envelope(envelope))
        require(again == envelope, f"{envelope} does not survive encoding")
        if envelope.can_reply:
            answer = make_reply(envelope, id=bytes(16))
            require(answer.in_reply_to == envelope.id, f"{answer} answers something else")
            require(not answer.can_reply, f"{answer} asks for an answer")


def check_plain(data: bytes) -> None:
    """What is read the short way is what the long way reads."""
    at = len(route_prefix(data)) if len(data) > 2 else 0
    plain = decode_fast(data, at)
    try:
        envelope = decode_envelope(data)
    except MalformedPayloadError:
        return
    if plain is not None:
        require(plain[1:3] == (envelope.ttl_ms, envelope.id), f"{plain} is not {envelope}")


def check_update(data: bytes) -> None:
    """Any bytes are news of routes or malformed, cut off or not."""
    for it in (*prefixes(data), data):
        try:
            update = decode_routing_update(it)
        except MalformedPayloadError:
            continue
        again = decode_routing_update(encode_routing_update(update))
        require(again == update, f"{update} does not survive encoding")


def check_payload(data: bytes) -> None:
    """Any bytes are what their content says, or malformed; failures are errors to be raised."""
    for content_type in _CONTENTS:
        try:
            decode_body(content_type, data)
        except MalformedPayloadError:
            continue
    try:
        failure = decode_failure(data)
    except MalformedPayloadError:
        return
    require(isinstance(failure.to_error(), Exception), f"{failure} cannot be raised")


def check_pong(data: bytes) -> None:
    """Any bytes are an answer to a ping or malformed, cut off or not."""
    for part in (*prefixes(data), data):
        try:
            require(isinstance(decode_pong(part), CellPath), "no path")
        except MalformedPayloadError:
            continue


def check_report(data: bytes) -> None:
    """Any answer to a check of routes is a report or malformed."""
    try:
        answer = decode_body("msgpack", data)
        report = decode_report(answer)
    except MalformedPayloadError:
        return
    compare_reports({"C1": report, "C2": report}, {"C3": "silent"})


# A core.


class Pipe:
    """A tunnel that keeps what is posted."""

    def __init__(self, name: str, role: Role) -> None:
        self.peer = HelloFrame(
            cluster="fuzzed",
            name=name,
            incarnation=_INCARNATION,
            address=Address("127.0.0.1", 26_502),
            frame_bytes_max=_SEND_BYTES_MAX,
            requests_pending_max=1,
            heartbeat_timeout_ms=1_000,
            role=role.value,
        )
        self.can_send = True
        self.send_bytes_max = _SEND_BYTES_MAX
        self.round_trip_s = None
        self.posted: list[tuple[str, bytes]] = []
        self.closed_because: str | None = None

    def send_nowait(self, subject: str, payload: bytes) -> None:
        if self.closed_because is not None:
            raise ConnectionClosedError(self.closed_because)
        self.posted.append((subject, payload))

    def close(self, reason: str) -> None:
        self.closed_because = reason

    def take(self, *, is_lenient: bool = False) -> list[Envelope | RoutingUpdate]:
        """What was posted, which must be what it says."""
        posted, self.posted = self.posted, []
        taken: list[Envelope | RoutingUpdate] = []
        for subject, data in posted:
            try:
                taken.append(
                    decode_envelope(data) if subject == MESSAGE else decode_routing_update(data)
                )
            except MalformedPayloadError:
                require(is_lenient, f"a {subject} that cannot be read was sent")
        return taken


class Core:
    """The core C1 with a cell `echo`, a satellite S2 that offers something, and a peer X."""

    def __init__(self, role: Role) -> None:
        self.dispatcher = MessageDispatcher(DomainInfo("C1", Role.CORE), _CONFIG)
        self.propagator = RoutePropagator(self.dispatcher, incarnation=1)
        # What is said here is looked at here, not in a millisecond.
        self.propagator._pending_updates = RoutingUpdateQueue(math.inf)
        self.links = DomainLinks(
            self.dispatcher,
            on_up=self.propagator.link_up,
            on_down=self.propagator.link_down,
            on_update=self.propagator.receive,
        )
        echo = FunctionCell("echo", lambda message: message.payload)
        self.dispatcher.registry.add_cell(CellRunner(echo, self.dispatcher), [])
        self.near, self.pipe = Pipe("S2", Role.SATELLITE), Pipe("X", role)
        self.near_link = self._accept(self.near)
        self.link = self._accept(self.pipe)
        advertisement = RouteAdvertisement.of(["work"], ["news"])
        self._feed(
            self.near_link,
            ROUTES,
            encode_routing_update(AdvertisementUpdate(_INCARNATION, 1, advertisement)),
        )
        self.propagator._run()
        self.near.take()
        self.pipe.take()
        self.routes = self.routes_of_others()

    def _accept(self, pipe: Pipe) -> DomainLink:
        return self.links.accept(cast(Tunnel, pipe))

    def _feed(self, link: DomainLink, subject: str, data: bytes) -> None:
        link.on_messages([RequestFrame(0, subject, data, 0, one_way=True)])

    def receive(self, subject: str, data: bytes) -> None:
        """The peer says something, twice: the second time some of it is remembered."""
        for _ in range(2):
            self._feed(self.link, subject, data)
        self.propagator._run()

    def routes_of_others(self) -> set[Route]:
        """All routes that are none of the peer's business."""
        about = (CellAddress.of_domain("X"), CellAddress("tunnel-X", "C1"))
        return {route for route in self.dispatcher.registry.table if route.target not in about}

    def check(self) -> None:
        """It is as sane as before, and serves everybody."""
        # A core does not read all of what goes straight on; the next domain does.
        posted = [*self.near.take(is_lenient=True), *self.pipe.take(is_lenient=True)]
        messages = [it for it in posted if isinstance(it, Envelope)]
        require(len(messages) <= _POSTED_MAX, f"{len(messages)} messages came of it")
        require(self.pipe.closed_because is None, f"closed: {self.pipe.closed_because}")
        require(set(self.links.by_domain) == {"S2", "X"}, f"left {set(self.links.by_domain)}")
        require(self.routes_of_others() == self.routes, "routes of others have changed")
        require(self.dispatcher.depth == 0, "a handler is still at work")
        self._check_echo(self.link, self.pipe)
        self._check_echo(self.near_link, self.near)

    def _check_echo(self, link: DomainLink, pipe: Pipe) -> None:
        request = _request("echo@C1", link.domain.name, payload=b"still there")
        self._feed(link, MESSAGE, encode_envelope(request))
        replies = [it for it in pipe.take() if isinstance(it, Envelope)]
        answers = [(it.kind, it.in_reply_to, it.payload) for it in replies]
        require(answers == [(MessageKind.REPLY, request.id, b"still there")], f"answered {answers}")

    def close(self) -> None:
        self.propagator.close()


def check_tunnel(data: bytes) -> None:
    """Whatever a peer says, it is dropped or answered, and everybody else goes on."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(_check_tunnel(data))


async def _check_tunnel(data: bytes) -> None:
    for role in Role:
        for subject in (MESSAGE, ROUTES):
            core = Core(role)
            try:
                core.receive(subject, data)
                core.check()
            finally:
                core.close()


# Valid inputs.


def _request(destination: str, domain: str, **fields: object) -> Envelope:
    settings: dict[str, object] = {"source": CellPath.of(f"p@{domain}", f"*@{domain}")}
    return Envelope(
        id=b"0123456789abcdef",
        destination=CellPath.parse(destination),
        wants_reply=True,
        **settings | fields,  # type: ignore[arg-type]
    )


def _envelopes() -> list[bytes]:
    echo = _request("echo@C1", "X", payload=b"hello", content_type="text", ttl_ms=1_000)
    failure = DeliveryFailure.of(NoRouteError, "nowhere", hop=CellAddress("b", "S2"), at="S2")
    walked = CellPath.of("echo@C1").advanced()
    envelopes = [
        echo,
        _request("echo@S2", "X", session="s", headers={"trace": "größe"}),
        _request("work", "X", suppress_errors=True),
        _request("news", "X", suppress_errors=True),
        _request("*@C1:echo@C1:p@X", "X"),
        echo.with_destination(walked),
        _request("echo@C1", "X", source=CellPath.of(*["p@X"] * 63, "*@X")),
        make_reply(echo, id=bytes(16), payload=b"\x91\x01", content_type="msgpack"),
        make_error_reply(echo, failure, id=bytes(16)),
    ]
    return [encode_envelope(it) for it in envelopes]


def _updates() -> list[bytes]:
    updates: list[RoutingUpdate] = [
        AdvertisementUpdate(
            _INCARNATION, 1, RouteAdvertisement.of(["work", "q"], ["news", "größe"], "east")
        ),
        AdvertisementUpdate(
            _INCARNATION, 2, RouteAdvertisement.of(domains=["C1", "S2", "S9", "X"])
        ),
        AdvertisementQuery(),
        AdvertisementAck(),
        AdvertisementAck(1, 2, b"0123456789abcdef", True),
        ShutdownNotice(_INCARNATION),
    ]
    return [encode_routing_update(it) for it in updates]


def _payloads() -> list[bytes]:
    failure = DeliveryFailure.of(NoRouteError, "nowhere", hop=CellAddress("b", "S2"), at="S2")
    reply = make_error_reply(_request("b@S2", "X"), failure, id=bytes(16))
    return [reply.payload, b'{"a": [1, null, "b"]}', b"\x82\xa1a\x01\xa1b\xc0", "größe".encode()]


_REPORT = CoreReport(
    KnownAdvertisement(7, 1, b"digest"),
    {"S1": KnownAdvertisement(8, 2, b"other"), "S2": KnownAdvertisement()},
)

TARGETS = [
    Target("cells-envelope", check_envelope, _envelopes()),
    Target("cells-plain", check_plain, _envelopes()),
    Target("cells-update", check_update, _updates()),
    Target("cells-payload", check_payload, _payloads()),
    Target("cells-pong", check_pong, [msgspec.msgpack.encode(PongBody(("a@S1", "System@C1")))]),
    Target("cells-report", check_report, [msgspec.msgpack.encode(_REPORT)]),
    Target("cells-tunnel", check_tunnel, [*_envelopes(), *_updates()]),
]
