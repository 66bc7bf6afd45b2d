"""Streams between brokers over a network that reorders and doubles packets."""

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.services.stream_sources import Objects
from postroad.services.transporters import MemoryHub
from tests.support.services.stream_nodes import chunks_of, joined, pair_of, values
from tests.support.tiers import by_tier

_STREAMED = (".REQ.", ".RES.", ".STREAM.")
_HELD_MAX = 20
_LATE_S = 0.002
# Each starts two brokers.
FEWER = settings(max_examples=by_tier(quick=3, test=12, nightly=250))


class UnrulyHub(MemoryHub):
    """Holds packets of streams back, and lets them go in another order, some of them twice."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._held: list[tuple[str, bytes]] = []
        self._is_scheduled = False

    def publish(self, topic: str, data: bytes) -> None:
        if not any(word in topic for word in _STREAMED):
            super().publish(topic, data)
            return
        self._held.append((topic, data))
        if self._chance.random() < 0.2:
            self._held.append((topic, data))
        if len(self._held) >= _HELD_MAX:
            self._let_go()
        elif not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_later(_LATE_S, self._let_go)

    def _let_go(self) -> None:
        self._is_scheduled = False
        held, self._held = self._held, []
        self._chance.shuffle(held)
        for topic, data in held:
            super().publish(topic, data)


seeds = st.integers(0, 2**32)
chunks = st.lists(st.binary(max_size=2_000) | st.just(bytes(300_000)), max_size=40)
objects = st.lists(
    st.integers(-1_000, 1_000) | st.text(max_size=20) | st.lists(st.booleans(), max_size=3),
    max_size=200,
)


@given(seeds, chunks, st.sampled_from(["JSON", "MsgPack", "CBOR"]))
@FEWER
def test_bytes_come_whole(seed: int, sent: list[bytes], serializer: str) -> None:
    async def run() -> None:
        async with pair_of(hub=UnrulyHub(seed), serializer=serializer) as pair:
            stream = await pair.near.call("files.echo", stream=values(*sent))
            assert await joined(stream) == b"".join(sent)
            await pair.until_idle()

    asyncio.run(run())


@given(seeds, objects, st.sampled_from(["JSON", "MsgPack", "CBOR"]))
@FEWER
def test_values_come_one_by_one(seed: int, sent: list[Any], serializer: str) -> None:
    async def run() -> None:
        async with pair_of(hub=UnrulyHub(seed), serializer=serializer) as pair:
            stream = await pair.near.call("files.echo", stream=Objects(values(*sent)))
            assert await chunks_of(stream) == sent
            await pair.until_idle()

    asyncio.run(run())


@given(seeds, st.integers(0, 30))
@FEWER
def test_reader_may_stop_anywhere(seed: int, read: int) -> None:
    async def run() -> None:
        async with pair_of(hub=UnrulyHub(seed), stream_idle_s=0.4) as pair:
            sent = values(*[bytes([number]) for number in range(30)])
            async with await pair.near.call("files.echo", stream=sent) as stream:
                got = [await anext(stream) for _ in range(read)]
            assert got == [bytes([number]) for number in range(read)]
            await pair.until_idle()

    asyncio.run(run())
