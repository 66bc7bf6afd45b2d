"""Rendezvous ranking: the same for everybody, evenly spread, and little moved."""

from collections import Counter

from postroad.cells import rank, rank_by

KEYS = [f"cell-{number}@S".encode() for number in range(1_000)]


def test_the_ranking_is_the_same_in_every_version() -> None:
    assert rank(b"clearing@local", ["C1", "C2", "C3"]) == ["C1", "C3", "C2"]
    assert rank(b"pricing@local", ["C1", "C2", "C3"]) == ["C3", "C2", "C1"]


def test_the_order_of_the_candidates_does_not_matter() -> None:
    assert all(rank(key, ["a", "b", "c"]) == rank(key, ["c", "a", "b"]) for key in KEYS)


def test_everybody_is_in_the_ranking_once() -> None:
    assert all(sorted(rank(key, ["a", "b", "c"])) == ["a", "b", "c"] for key in KEYS)
    assert rank(b"x", []) == []


def test_the_load_is_spread() -> None:
    firsts = Counter(rank(key, ["a", "b", "c", "d"])[0] for key in KEYS)
    assert all(200 < firsts[name] < 300 for name in "abcd")


def test_one_that_comes_takes_its_share_and_moves_nothing_else() -> None:
    moved = 0
    for key in KEYS:
        before, after = rank(key, ["a", "b"]), rank(key, ["a", "b", "c"])
        assert [name for name in after if name != "c"] == before
        moved += after[0] == "c"
    assert 280 < moved < 390


def test_those_that_are_preferred_come_first_and_are_ranked_too() -> None:
    def in_zone(name: str) -> bool:
        return name in "ab"

    rankings = [rank_by(key, "abcd", name=str, is_preferred=in_zone) for key in KEYS]
    assert all(sorted(ranking[:2]) == ["a", "b"] for ranking in rankings)
    firsts = Counter(ranking[0] for ranking in rankings)
    thirds = Counter(ranking[2] for ranking in rankings)
    assert 430 < firsts["a"] < 570
    assert 430 < thirds["c"] < 570
