"""The hash chain: equal only for equal histories of equal streams."""

from itertools import accumulate

from postroad.durable.chain import CHAIN_BYTES, extend, genesis


def test_every_stream_begins_elsewhere() -> None:
    starts = [
        genesis(b"store-1", 1, "beta"),
        genesis(b"store-2", 1, "beta"),
        genesis(b"store-1", 2, "beta"),
        genesis(b"store-1", 1, "gamma"),
        genesis(b"store-1", 11, "beta"),
    ]
    assert len(set(starts)) == len(starts)
    assert {len(start) for start in starts} == {CHAIN_BYTES}
    assert genesis(b"store-1", 1, "beta") == starts[0]


def test_chain_knows_its_stream_pages_and_order() -> None:
    start = genesis(b"store", 1, "beta")
    histories = [[b"a", b"b"], [b"b", b"a"], [b"ab"], [b"a", b"b", b""], [b"a"], []]
    ends = [list(accumulate(pages, extend, initial=start))[-1] for pages in histories]
    assert len(set(ends)) == len(ends)
    assert extend(extend(start, b"a"), b"b") == ends[0]
    assert {len(end) for end in ends} == {CHAIN_BYTES}
    # Stores that exist hold chains: another function would make every peer look restored.
    chain = extend(genesis(bytes(16), 1, "beta"), b"page")
    assert chain.hex() == "2babdeb9c3fb9885d3b3449582e997db"
