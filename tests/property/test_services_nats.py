"""What holds for all that a NATS server can say, and for all that it cannot."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import MalformedPayloadError
from postroad.services.transporters.nats_protocol import NatsParser
from tests.support.services.nats_talk import Heard, heard_of, message

SIDS = st.integers(1, 10**6).map(lambda number: str(number).encode())
# Each with what is told of it.
SAID = st.one_of(
    st.tuples(SIDS, st.binary(max_size=300)).map(lambda it: (message(*it), it)),
    st.just((b"PING\r\n", "ping")),
    st.just((b"PONG\r\n", "pong")),
    st.just((b"-ERR 'Slow Consumer'\r\n", "error Slow Consumer")),
    st.just((b"+OK\r\n", None)),
)
# Pieces that make what is nearly right likely.
WORDS = st.sampled_from(b"MSG |a |1 |0|5|\r\n|\r|\n| |PING|INFO |{}|-ERR".split(b"|"))


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


@given(st.lists(SAID, max_size=12), st.lists(st.integers(0, 5_000), max_size=12))
def test_how_it_is_cut_does_not_matter(said: list[tuple[bytes, object]], cuts: list[int]) -> None:
    data = b"".join(piece for piece, _ in said)
    expected = [told for _, told in said if told is not None]
    assert heard_of(data) == expected
    assert heard_of(*pieces_of(data, cuts)) == expected


def outcome(pieces: list[bytes]) -> tuple[list[object], bool]:
    """What is told, and whether it was understood to the end."""
    heard = Heard()
    parser = NatsParser(heard)
    try:
        for piece in pieces:
            parser.feed(piece)
    except MalformedPayloadError:
        return heard.all, False
    return heard.all, True


@given(
    st.one_of(st.binary(max_size=200), st.lists(WORDS, max_size=30).map(b"".join)),
    st.lists(st.integers(0, 5_000), max_size=12),
)
def test_garbage_is_refused_and_nothing_else(data: bytes, cuts: list[int]) -> None:
    # Refused is what is whole: how it came does not matter.
    assert outcome([data]) == outcome(pieces_of(data, cuts))
    assert outcome([data]) == outcome([data[at : at + 1] for at in range(len(data))])
