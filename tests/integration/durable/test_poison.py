"""Mail that no node would send: it is refused with a reason, and what comes after it is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from postroad.core.errors import RemoteDecodeError
from postroad.durable import DurableQueuesConfig, StoredMessage
from postroad.durable.bridges.protocol import (
    StreamAck,
    StreamWindow,
    WindowStatus,
    WireBatch,
    decode_stream_message,
    encode,
    extend_chain,
)
from postroad.durable.names import DELIVER
from postroad.net import MessagingService
from tests.support.durable.mail_pairs import (
    CLUSTER,
    LIMITS,
    QUICK,
    Recorder,
    Station,
    running_station,
)
from tests.support.durable.nodes import QUEUE, Correspondent, make_letter, make_letters


class Poisoner:
    """A peer that sends whatever it likes."""

    def __init__(self, service: MessagingService, beta: Station) -> None:
        self._service = service
        self._beta = beta

    async def send(self, window: StreamWindow) -> StreamAck:
        reply = await self._service.request(
            self._beta.address, DELIVER, encode(window), peer="beta"
        )
        return decode_stream_message(StreamAck, reply)


@asynccontextmanager
async def poisoned(
    directory: Path, config: DurableQueuesConfig = QUICK
) -> AsyncIterator[tuple[Poisoner, Station]]:
    async with (
        running_station("beta", directory, config=config) as beta,
        MessagingService(CLUSTER, "gamma", limits=LIMITS) as service,
    ):
        yield Poisoner(service, beta), beta


@pytest.mark.parametrize(
    ("letters", "reason"),
    [
        (b"\xc1 no letters", "unreadable"),
        (b"\x90", "unreadable"),
        (msgspec.msgpack.encode([make_letter(), make_letter()]), "unreadable"),
        (msgspec.msgpack.encode([make_letter(key="\0")]), "unreadable"),
        (msgspec.msgpack.encode([make_letter(queue="two words")]), "unknown queue"),
        (msgspec.msgpack.encode([make_letter(queue="_replies")]), "unknown queue"),
        (msgspec.msgpack.encode([make_letter(body=bytes(1_100_000))]), "too large"),
    ],
    ids=["garbage", "none", "two", "key", "name", "own", "large"],
)
async def test_poison_message_is_rejected_and_later_ones_accepted(
    tmp_path: Path, letters: bytes, reason: str
) -> None:
    """R11: the sender has it as its dead letter, and the queue goes on."""
    async with poisoned(tmp_path) as (poisoner, beta):
        recorder = await Recorder.at(beta, QUEUE)
        mail = Correspondent([make_letters(1)], to="beta")
        chain = extend_chain(mail.chains[-1], letters)
        mail.pages.append(WireBatch(1, chain, letters))
        mail.chains.append(chain)
        mail.firsts.append(3)
        mail.add([make_letter(3)])
        answer = await poisoner.send(mail.window())
        assert (answer.status, answer.watermark) == (WindowStatus.ACCEPTED, 3)
        assert [(rejection.number, rejection.reason) for rejection in answer.rejections] == [
            (2, reason)
        ]
        assert await recorder.until(2) == [b"1", b"3"]


async def test_batch_changed_in_transit_is_rejected(tmp_path: Path) -> None:
    async with poisoned(tmp_path) as (poisoner, beta):
        window = Correspondent([[make_letter(1)]], to="beta").window()
        changed = msgspec.msgpack.encode([make_letter(1, body=b"forged")])
        pages = [msgspec.structs.replace(window.batches[0], data=changed)]
        answer = await poisoner.send(msgspec.structs.replace(window, batches=pages))
        assert [rejection.reason for rejection in answer.rejections] == ["unreadable"]
        assert await beta.mail.admin.peek(QUEUE) == []


async def test_window_that_does_not_continue_stream_is_rejected(tmp_path: Path) -> None:
    """B5: neither what leaves a gap, nor another history, nor the same once more."""
    letters: list[list[StoredMessage]] = [[make_letter(number)] for number in (1, 2, 3)]
    mail = Correspondent(letters, to="beta")
    other = Correspondent([[make_letter(7)], *letters[1:]], to="beta")
    async with poisoned(tmp_path) as (poisoner, beta):
        assert (await poisoner.send(mail.window(1, 2))).status is WindowStatus.GAP
        assert (await poisoner.send(mail.window(0, 1))).watermark == 1
        assert (await poisoner.send(mail.window(0, 1))).watermark == 1
        assert (await poisoner.send(mail.window(2, 3))).status is WindowStatus.GAP
        assert (await poisoner.send(other.window(1, 2))).status is WindowStatus.DIVERGED
        assert (await poisoner.send(mail.window(0, 3))).watermark == 3
        assert [message.body for message in await beta.mail.admin.peek(QUEUE)] == [b"1", b"2", b"3"]


async def test_windows_that_come_together_have_no_more_room_than_in_turn(tmp_path: Path) -> None:
    pages = [[make_letter(number, body=bytes(6_000))] for number in range(1, 31)]
    mail = Correspondent(pages, to="beta")
    config = msgspec.structs.replace(QUICK, sender_bytes_max=10_000)
    async with poisoned(tmp_path, config) as (poisoner, beta):
        windows = (poisoner.send(mail.window(index, index + 1)) for index in range(30))
        answers = await asyncio.gather(*windows)
        # Of one page more than there is room for, nobody knows before it is here.
        assert max(answer.watermark for answer in answers) <= 2
        assert len(await beta.mail.admin.peek(QUEUE, limit=100)) <= 2


async def test_window_with_wrong_count_is_rejected(tmp_path: Path) -> None:
    """Each of them would be remembered as refused."""
    async with poisoned(tmp_path) as (poisoner, beta):
        window = Correspondent([], to="beta").window()
        pages = [WireBatch(65_535, bytes(16), b"junk")]
        with pytest.raises(RemoteDecodeError, match="65535 messages in 4 bytes"):
            await poisoner.send(msgspec.structs.replace(window, batches=pages))
        good = Correspondent([[make_letter(1)]], to="beta")
        assert (await poisoner.send(good.window())).watermark == 1
        assert [message.body for message in await beta.mail.admin.peek(QUEUE)] == [b"1"]
