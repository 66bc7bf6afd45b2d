"""Messages whose first way fails: which one is tried next, and when that is given up."""

import asyncio

import pytest

from postroad.cells import CellAddress, CellBusy, CellsConfig, Failure, Kind, NoRoute
from postroad.cells.failure import _encoder as failure_encoder
from tests.support.cells.workshop import Dock, Workshop
from tests.support.deadlines import eventually


def fail(
    shop: Workshop, dock: Dock, error: type[NoRoute] | type[CellBusy] = NoRoute, at: str = "C1"
) -> None:
    """The core says that the last message did not arrive."""
    failure = Failure.of(error, f"said {at}", hop=CellAddress("b", "S2"), at=at)
    shop.answer(dock.envelopes[-1], failure_encoder.encode(failure), kind=Kind.ERROR)


async def next_asked(docks: dict[str, Dock], asked: list[str]) -> str:
    """The core that is asked after those that were; remembers it."""
    await eventually(lambda: any(docks[it].envelopes for it in docks if it not in asked))
    [name] = [it for it in docks if docks[it].envelopes and it not in asked]
    asked.append(name)
    return name


async def test_when_a_core_has_no_route_the_next_one_is_asked() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2", "C3")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    asked: list[str] = []
    for _ in range(2):
        name = await next_asked(docks, asked)
        fail(shop, docks[name], at=name)
    shop.answer(docks[await next_asked(docks, asked)].envelopes[0], b"found")

    assert await call == b"found"
    assert [len(it.envelopes) for it in docks.values()] == [1, 1, 1]
    # Each attempt is a message of its own: an answer to one is no answer to another.
    assert len({it.envelopes[0].id for it in docks.values()}) == 3


async def test_when_all_cores_have_no_route_one_of_them_is_quoted() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask", wait=False))
    asked: list[str] = []
    for _ in docks:
        name = await next_asked(docks, asked)
        fail(shop, docks[name], at=name)
    with pytest.raises(NoRoute, match=f"said {asked[-1]}"):
        await call
    assert shop.pending == 0


async def test_when_all_cores_have_no_route_they_are_asked_again_when_routes_change() -> None:
    shop = Workshop(CellsConfig(route_retry_s=30.0))
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask", timeout=20))
    asked: list[str] = []
    for _ in docks:
        name = await next_asked(docks, asked)
        fail(shop, docks[name], at=name)
    await asyncio.sleep(0.01)
    assert sum(len(it.envelopes) for it in docks.values()) == 2
    shop.connect("C3", is_default=False)
    await eventually(lambda: sum(len(it.envelopes) for it in docks.values()) == 3)
    [again] = [it for it in docks.values() if len(it.envelopes) == 2]
    shop.answer(again.envelopes[-1], b"found")
    assert await call == b"found"


async def test_the_domain_of_the_cell_has_the_last_word() -> None:
    """If the cell is not in its own domain, no other core can know better."""
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask", wait=False))
    fail(shop, docks[await next_asked(docks, [])], at="S2")
    with pytest.raises(NoRoute, match="said S2"):
        await call
    assert sum(len(it.envelopes) for it in docks.values()) == 1

    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    shop.tell("b@S2", b"say")
    fail(shop, docks[await next_asked(docks, [])], CellBusy, at="S2")
    assert sum(len(it.envelopes) for it in docks.values()) == 1


async def test_when_a_gateway_is_full_the_next_one_takes_it() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    first = await next_asked(docks, [])
    docks[first].is_full = True
    other = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    second = await next_asked(docks, [first])
    for name, task in ((first, call), (second, other)):
        shop.answer(docks[name].envelopes[0], name.encode())
        assert await task == name.encode()


async def test_when_all_gateways_are_full_it_is_busy() -> None:
    shop = Workshop()
    docks = [shop.connect("C1"), shop.connect("C2")]
    for dock in docks:
        dock.is_full = True
    with pytest.raises(CellBusy):
        await shop.call("b@S2", b"ask", timeout=20)
    with pytest.raises(CellBusy):
        shop.tell("b@S2", b"ask")
    assert shop.exchange.statistics.refused == 2
    assert shop.pending == 0


@pytest.mark.parametrize("cores", [1, 2])
async def test_a_message_nobody_waits_for_tries_the_next_core_too(
    cores: int, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Workshop()
    docks = {f"C{n + 1}": shop.connect(f"C{n + 1}") for n in range(cores)}
    shop.tell("b@S2", b"say")
    asked: list[str] = []
    for _ in range(cores):
        name = await next_asked(docks, asked)
        fail(shop, docks[name], at=name)

    assert [it.payload for dock in docks.values() for it in dock.envelopes] == [b"say"] * cores
    assert "a message to b@S2 was not delivered: said C" in caplog.text
    assert shop.exchange.statistics.resent == cores


async def test_a_gateway_that_goes_gives_its_messages_to_another() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    asked: list[str] = []
    lost = await next_asked(docks, asked)
    [parcel] = docks[lost].parcels
    shop.disconnect(lost)
    shop.exchange.give_back(parcel)
    shop.answer(docks[await next_asked(docks, asked)].envelopes[0], b"found")
    assert await call == b"found"


async def test_the_last_gateway_that_goes_takes_nothing_along() -> None:
    shop = Workshop()
    dock = shop.connect("C1")
    call = asyncio.ensure_future(shop.call("b@S2", b"ask", wait=False))
    await eventually(lambda: dock.parcels)
    shop.disconnect("C1")
    shop.exchange.give_back(dock.parcels[0])
    with pytest.raises(NoRoute):
        await call


async def test_a_message_sent_again_has_only_the_time_that_is_left() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2", "C3")}
    asked: list[str] = []
    shop.tell("b@S2", b"told", timeout=10.0)
    began = shop.exchange.loop.time()
    for _ in range(2):
        name = await next_asked(docks, asked)
        await asyncio.sleep(0.03)
        fail(shop, docks[name], at=name)
    await next_asked(docks, asked)

    lain_ms = (shop.exchange.loop.time() - began) * 1000
    left_ms = [docks[name].envelopes[0].ttl_ms or 0 for name in asked]
    assert left_ms[0] == 10_000
    assert left_ms[0] - 28 >= left_ms[1] >= left_ms[2] + 28
    assert left_ms[2] >= 10_000 - lain_ms - 1


async def test_a_message_whose_time_is_over_is_not_sent_again() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    asked: list[str] = []
    shop.tell("b@S2", b"told", timeout=0.01)
    name = await next_asked(docks, asked)
    await asyncio.sleep(0.02)
    fail(shop, docks[name], at=name)
    assert sum(len(it.envelopes) for it in docks.values()) == 1
