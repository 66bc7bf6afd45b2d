"""A connection is kept whatever a session does, and left whenever that is asked for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from postroad.services.errors import BrokerDisconnectedError, QueueIsFullError
from postroad.services.kinds import Kind
from postroad.services.topics import Topics
from postroad.services.transporters.outbox import PACKET_COST, Outbox
from postroad.services.transporters.sessions import SessionTransporter
from tests.support.deadlines import DEADLINE_S
from tests.support.services.transporter_nodes import Recorder

Session = Callable[[Callable[[], None]], Awaitable[None]]


class Scripted(SessionTransporter):
    """Has one session after the other as they are written; the last is had again and again."""

    name = "scripted"

    def __init__(self, *sessions: Session, connect_timeout_s: float = 5.0) -> None:
        super().__init__(connect_timeout_s=connect_timeout_s)
        self._sessions = sessions
        self.had = 0
        self.sent: list[tuple[object, bytes]] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.heard = Recorder()
        self.bind(Topics("alpha"), self.heard)

    def publish(self, kind: Kind, node_id: str | None, data: bytes) -> None:
        self._put(node_id, data)

    async def _session(self, ready: Callable[[], None]) -> None:
        self.had += 1
        await self._sessions[min(self.had, len(self._sessions)) - 1](ready)

    async def _send(self, to: object, data: bytes) -> None:
        await self.may_send.wait()
        if data == b"poison":
            raise ConnectionResetError("poisoned")
        self.sent.append((to, data))

    async def until_told(self, connections: int, losses: int) -> None:
        told = self.heard
        await told.until(
            lambda: (len(told.connections), len(told.losses)) == (connections, losses),
            f"{connections} connections and {losses} losses",
        )


async def last(ready: Callable[[], None]) -> None:
    ready()
    await asyncio.Event().wait()


async def end_silently(ready: Callable[[], None]) -> None:
    ready()
    await asyncio.sleep(0)


async def break_down(ready: Callable[[], None]) -> None:
    ready()
    await asyncio.sleep(0)
    raise ValueError("not thought of")


async def refuse(ready: Callable[[], None]) -> None:
    raise ConnectionRefusedError("nobody there")


async def hang(ready: Callable[[], None]) -> None:
    await asyncio.Event().wait()


async def fail_when_cancelled(ready: Callable[[], None]) -> None:
    """As task groups do when one of them fails at that very moment."""
    ready()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ConnectionResetError("lost anyway") from None


@pytest.fixture
async def left() -> AsyncIterator[list[Scripted]]:
    """Those to be disconnected at the end."""
    those: list[Scripted] = []
    yield those
    for transporter in those:
        await asyncio.wait_for(transporter.disconnect(), DEADLINE_S)


async def test_session_that_ends_is_followed_by_another(left: list[Scripted]) -> None:
    transporter = Scripted(end_silently, refuse, refuse, last)
    left.append(transporter)
    await transporter.connect()
    await transporter.until_told(connections=2, losses=1)
    assert transporter.had == 4
    assert transporter.heard.connections == [False, True]
    assert transporter.heard.losses == ["the server closed the connection"]


async def test_what_was_not_thought_of_is_logged_and_survived(
    left: list[Scripted], caplog: pytest.LogCaptureFixture
) -> None:
    transporter = Scripted(break_down, last)
    left.append(transporter)
    await transporter.connect()
    await transporter.until_told(connections=2, losses=1)
    assert transporter.heard.losses == ["not thought of"]
    assert "ValueError" in caplog.text


async def test_first_session_must_succeed_and_may_be_left() -> None:
    transporter = Scripted(refuse)
    with pytest.raises(ConnectionError, match="scripted: nobody there"):
        await transporter.connect()
    assert transporter.had == 1
    assert transporter.heard.connections == []
    assert transporter.heard.losses == []
    assert not transporter.is_connected
    transporter = Scripted(fail_when_cancelled)
    await transporter.connect()
    await asyncio.wait_for(transporter.disconnect(), DEADLINE_S)
    assert transporter.had == 1
    assert transporter.heard.losses == []
    assert not transporter.is_connected
    transporter = Scripted(end_silently, refuse)
    await transporter.connect()
    await transporter.until_told(connections=1, losses=1)
    await asyncio.wait_for(transporter.disconnect(), DEADLINE_S)
    assert transporter.heard.connections == [False]


async def test_session_that_does_not_get_ready(left: list[Scripted]) -> None:
    transporter = Scripted(hang, connect_timeout_s=0.05)
    with pytest.raises(OSError, match=r"scripted: no connection within 0\.05 s"):
        await transporter.connect()
    transporter = Scripted(end_silently, hang, last, connect_timeout_s=0.05)
    left.append(transporter)
    await transporter.connect()
    await transporter.until_told(connections=2, losses=1)
    assert transporter.had == 3


async def test_what_is_being_sent_is_waited_for() -> None:
    transporter = Scripted(last)
    await transporter.connect()
    transporter.may_send.clear()
    transporter.publish(Kind.EVENT, "beta", b"first")
    transporter.publish(Kind.EVENT, "beta", b"last")
    leaving = asyncio.create_task(transporter.disconnect())
    await asyncio.wait([leaving], timeout=0.02)
    assert not leaving.done()
    transporter.may_send.set()
    await leaving
    assert transporter.sent == [("beta", b"first"), ("beta", b"last")]


async def test_failure_to_send_is_a_loss(
    left: list[Scripted], caplog: pytest.LogCaptureFixture
) -> None:
    transporter = Scripted(last)
    left.append(transporter)
    await transporter.connect()
    for data in (b"good", b"poison", b"lost", b"lost"):
        transporter.publish(Kind.EVENT, "beta", data)
    await transporter.until_told(connections=1, losses=1)
    with pytest.raises(BrokerDisconnectedError):
        transporter.publish(Kind.EVENT, "beta", b"late")
    await transporter.until_told(connections=2, losses=1)
    transporter.publish(Kind.EVENT, "beta", b"again")
    await transporter.disconnect()
    assert [data for _, data in transporter.sent] == [b"good", b"again"]
    assert transporter.heard.losses == ["poisoned"]
    assert "2 packets were not sent" in caplog.text


async def test_outbox_keeps_the_order_until_it_is_cleared() -> None:
    outbox: Outbox[str] = Outbox()
    waiting = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.put("one", b"1")
    outbox.put("two", b"2")
    assert await waiting == ("one", b"1")
    assert len(outbox) == 1
    assert await outbox.take() == ("two", b"2")
    outbox = Outbox(waiting_bytes_max=3 * PACKET_COST, high_bytes=PACKET_COST)
    outbox.put("to", b"1")
    outbox.put("to", b"2")
    assert outbox.clear() == 2
    await asyncio.wait_for(outbox.room(), DEADLINE_S)
    outbox.put("to", bytes(2 * PACKET_COST))
    assert len(outbox) == 1


async def test_outbox_is_bounded() -> None:
    size = 5 + PACKET_COST
    outbox: Outbox[str] = Outbox(waiting_bytes_max=2 * size, high_bytes=size)
    outbox.put("to", bytes(5))
    await asyncio.wait_for(outbox.room(), DEADLINE_S)
    outbox.put("to", bytes(5))
    # Nothing takes room as well.
    with pytest.raises(QueueIsFullError, match=str(2 * size)):
        outbox.put("to", b"")
    waiting = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.take_now()
    await asyncio.wait_for(waiting, DEADLINE_S)
