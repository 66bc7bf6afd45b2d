"""The hash chain: equal only for equal histories of equal streams."""

from itertools import accumulate

from postroad.durable.bridges.hash_chain import CHAIN_BYTES, extend_chain, initial_chain


def test_every_stream_begins_elsewhere() -> None:
    starts = [
        initial_chain(b"store-1", 1, "beta"),
        initial_chain(b"store-2", 1, "beta"),
        initial_chain(b"store-1", 2, "beta"),
        initial_chain(b"store-1", 1, "gamma"),
        initial_chain(b"store-1", 11, "beta"),
    ]
    assert len(set(starts)) == len(starts)
    assert {len(start) for start in starts} == {CHAIN_BYTES}
    assert initial_chain(b"store-1", 1, "beta") == starts[0]


def test_chain_knows_its_stream_pages_and_order() -> None:
    start = initial_chain(b"store", 1, "beta")
    histories = [[b"a", b"b"], [b"b", b"a"], [b"ab"], [b"a", b"b", b""], [b"a"], []]
    ends = [list(accumulate(pages, extend_chain, initial=start))[-1] for pages in histories]
    assert len(set(ends)) == len(ends)
    assert extend_chain(extend_chain(start, b"a"), b"b") == ends[0]
    assert {len(end) for end in ends} == {CHAIN_BYTES}
    # Stores that exist hold chains: another function would make every peer look restored.
    chain = extend_chain(initial_chain(bytes(16), 1, "beta"), b"page")
    assert chain.hex() == "2babdeb9c3fb9885d3b3449582e997db"
