"""Who consumes a queue, and who of them gets a message."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import product

import pytest

from postroad.cells import CellAddress, CellDomain, Route
from postroad.core.errors import ConfigError, MalformedPayloadError
from postroad.net import MessagingService
from postroad.node import GuaranteedConfig
from postroad.node.consumers import (
    Directions,
    known_consumers,
    own_consumers,
    rank_cells,
    read_consumers,
)
from tests.support.cases import naming

QUEUE = "payments"
CONFIG = GuaranteedConfig(look_first_s=0.001, look_max_s=0.002)


@pytest.fixture
async def domain() -> AsyncIterator[CellDomain]:
    """A domain of zone `north` that is alone."""
    async with (
        MessagingService("test", "S1") as service,
        CellDomain(service, zone="north") as domain,
    ):
        yield domain


def add_cells(domain: CellDomain, *names: str) -> None:
    for name in names:
        domain.add_function(name, lambda message: None, consume=[QUEUE])


async def test_consumers_are_known_by_cells_and_routes(domain: CellDomain) -> None:
    assert (own_consumers(domain, QUEUE), known_consumers(domain, QUEUE)) == ([], {})
    add_cells(domain, "a", "b")
    assert own_consumers(domain, QUEUE) == ["a", "b"]
    assert known_consumers(domain, QUEUE) == {"S1": "north"}
    routes = [
        Route.to_queue(QUEUE, CellAddress.of_domain("S2"), "south"),
        Route.to_queue(QUEUE, CellAddress.of_domain("S3")),
        Route.to_queue("others", CellAddress.of_domain("S4")),
    ]
    domain.change_routes(added=routes)
    assert own_consumers(domain, QUEUE) == ["a", "b"]
    assert known_consumers(domain, QUEUE) == {"S1": "north", "S2": "south", "S3": None}


async def test_key_decides_who_is_chosen(domain: CellDomain) -> None:
    directions = Directions(domain, CONFIG)
    consumers = dict.fromkeys(("S1", "S2", "S3"))
    chosen = [directions.choose(consumers, b"%d" % key) for key in range(300)]
    assert chosen == [directions.choose(consumers, b"%d" % key) for key in range(300)]
    assert min(Counter(chosen).values()) > 60
    directions = Directions(domain, CONFIG)
    all_of_them, rest = dict.fromkeys(("S1", "S2", "S3")), dict.fromkeys(("S1", "S3"))
    for key in range(100):
        before = directions.choose(all_of_them, b"%d" % key)
        if before != "S2":
            assert directions.choose(rest, b"%d" % key) == before
    directions = Directions(domain, CONFIG)
    consumers = {"S2": "south", "S3": "north", "S4": None}
    assert {directions.choose(consumers, b"%d" % key) for key in range(50)} == {"S3"}


async def test_waiting_ends_with_the_first_consumer_or_the_time(domain: CellDomain) -> None:
    directions = Directions(domain, CONFIG)
    assert await directions.wait(QUEUE, 0.01) == {}
    waiting = asyncio.create_task(directions.wait(QUEUE, 10.0))
    add_cells(domain, "a")
    assert await waiting == {"S1": "north"}


def test_consumers_are_ranked_and_read() -> None:
    cells = ["a", "b", "c"]
    rankings = {tuple(rank_cells(cells, b"%d" % key)) for key in range(100)}
    assert {ranking[0] for ranking in rankings} == set(cells)
    assert all(sorted(ranking) == cells for ranking in rankings)
    assert read_consumers({"S2": None, "S3": "north"}) == {"S2": None, "S3": "north"}
    assert read_consumers({}) == {}
    for answer in (
        None,
        b"",
        "S2",
        ["S2"],
        {"S2": 7},
        {7: None},
        {"not a name!": None},
        {"": None},
    ):
        with naming(answer), pytest.raises(MalformedPayloadError, match="no consumers"):
            read_consumers(answer)
    for field, value in product(
        GuaranteedConfig.__struct_fields__, [0.0, -1.0, float("inf"), float("nan")]
    ):
        with (
            naming((field, value)),
            pytest.raises(ConfigError, match=f"{field}=.* must be a finite number above 0"),
        ):
            GuaranteedConfig(**{field: value})
