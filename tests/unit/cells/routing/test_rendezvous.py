"""Rendezvous ranking: the same for everybody, evenly spread, and little moved."""

from collections import Counter
from random import Random

import pytest

from postroad.cells.routing.rendezvous import rank_for_message, rendezvous_rank, rendezvous_rank_by

KEYS = [f"cell-{number}@S".encode() for number in range(1_000)]


def test_the_ranking_is_the_same_in_every_version_and_order() -> None:
    assert rendezvous_rank(b"clearing@local", ["C1", "C2", "C3"]) == ["C1", "C3", "C2"]
    assert rendezvous_rank(b"pricing@local", ["C1", "C2", "C3"]) == ["C3", "C2", "C1"]

    assert all(
        rendezvous_rank(key, ["a", "b", "c"]) == rendezvous_rank(key, ["c", "a", "b"])
        for key in KEYS
    )

    assert all(sorted(rendezvous_rank(key, ["a", "b", "c"])) == ["a", "b", "c"] for key in KEYS)
    assert rendezvous_rank(b"x", []) == []

    firsts = Counter(rendezvous_rank(key, ["a", "b", "c", "d"])[0] for key in KEYS)
    assert all(200 < firsts[name] < 300 for name in "abcd")


def test_ranking_moves_little_and_prefers_own_zone() -> None:
    moved = 0
    for key in KEYS:
        before, after = rendezvous_rank(key, ["a", "b"]), rendezvous_rank(key, ["a", "b", "c"])
        assert [name for name in after if name != "c"] == before
        moved += after[0] == "c"
    assert 280 < moved < 390

    def in_zone(name: str) -> bool:
        return name in "ab"

    rankings = [rendezvous_rank_by(key, "abcd", name=str, is_preferred=in_zone) for key in KEYS]
    assert all(sorted(ranking[:2]) == ["a", "b"] for ranking in rankings)
    firsts = Counter(ranking[0] for ranking in rankings)
    thirds = Counter(ranking[2] for ranking in rankings)
    assert 430 < firsts["a"] < 570
    assert 430 < thirds["c"] < 570


# Messages.

RANDOM = Random(1)
PREFIX = RANDOM.randbytes(8)
IDS = {
    "random": [RANDOM.randbytes(16) for _ in range(4_000)],
    "counted": [PREFIX + number.to_bytes(8) for number in range(4_000)],
    "small": [number.to_bytes(16) for number in range(4_000)],
}


def rank_ids(id: bytes, names: str) -> list[str]:
    return rank_for_message(id, names, name=str)


def test_the_ranking_of_a_message_is_the_same_in_every_version_and_order() -> None:
    rankings = ["".join(rank_ids(bytes([number]) * 16, "abc")) for number in range(4)]
    assert rankings == ["bac", "abc", "cba", "cab"]

    assert all(rank_ids(id, "abc") == rank_ids(id, "cab") for id in IDS["random"][:200])

    for id in IDS["random"][:200]:
        ranking = rank_for_message(id, "abcd", name=str, is_preferred=lambda name: name in "bd")
        assert sorted(ranking[:2]) == ["b", "d"]


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("names", ["ab", "abc", "abcdefgh"])
def test_messages_are_spread(names: str, ids: list[bytes]) -> None:
    firsts = Counter(rank_ids(id, names)[0] for id in ids)
    fair = len(ids) / len(names)
    # Four standard deviations of what dice would do.
    assert all(abs(firsts[name] - fair) < 4 * fair**0.5 for name in names)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
def test_removed_target_moves_only_its_share(ids: list[bytes]) -> None:
    heirs: Counter[str] = Counter()
    for id in ids:
        before, after = rank_ids(id, "abcde"), rank_ids(id, "bcde")
        assert [name for name in before if name != "a"] == after
        if before[0] == "a":
            heirs[after[0]] += 1
    fair = heirs.total() / 4
    assert all(abs(heirs[name] - fair) < 4 * fair**0.5 for name in "bcde")
