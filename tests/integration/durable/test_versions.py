"""Nodes of neighbouring versions exchange mail; between others it waits."""

from __future__ import annotations

from functools import partial

import pytest

from postroad.durable.bridges import bridge
from postroad.durable.bridges.protocol import OLDEST, VERSION, StreamOpen
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import (
    Recorder,
    Station,
    numbers_of,
    post_numbers,
    until_empty,
)


async def test_newer_sender_uses_common_protocol_version(
    alpha: Station, beta: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bridge, "StreamOpen", partial(StreamOpen, version=VERSION + 1, oldest=OLDEST)
    )
    recorder = await Recorder.at(beta)
    await post_numbers(alpha, "beta", range(5))
    assert numbers_of(await recorder.until(5)) == list(range(5))
    await until_empty(alpha.mail, "beta")


async def test_messages_of_unknown_protocol_version_wait(
    alpha: Station, beta: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = await Recorder.at(beta)
    with monkeypatch.context() as patch:
        patch.setattr(
            bridge, "StreamOpen", partial(StreamOpen, version=VERSION + 2, oldest=VERSION + 1)
        )
        await post_numbers(alpha, "beta", range(5))

        async def is_told() -> bool:
            bridge_status = (await alpha.mail.statistics()).peers["beta"].bridge
            return bridge_status is not None and "update the older of the two" in (
                bridge_status.last_error or ""
            )

        await eventually(is_told, "the bridge says why")
        assert len(await alpha.mail.bridges.peek("beta")) == 5 and not recorder.bodies
    assert numbers_of(await recorder.until(5)) == list(range(5))
