"""Rings of nodes."""

from collections import Counter

import pytest

from postroad.core.errors import ConfigError
from postroad.services.ring import HASH_SIZE, Layout, hash_of, lay_out
from tests.support.cases import naming


def test_owners_are_those_of_moleculer() -> None:
    ring = lay_out(["node-1", "node-2", "node-3"])
    owners = [ring.owner(key) for key in ("a", "b", "c", "user-1", "user-2", "42")]
    assert owners == ["node-2", "node-3", "node-3", "node-2", "node-2", "node-1"]
    ring = lay_out(["node-1", "node-2"], vnodes=3, ring_size=1000)
    owners = [ring.owner(key) for key in ("a", "b", "c", "user-1", "user-2", "42")]
    assert owners == ["node-2", "node-1", "node-2", "node-2", "node-1", "node-2"]
    assert hash_of("a") == 0x0CC175B9
    assert hash_of("a", 1000) == 0x0CC175B9 % 1000
    assert 0 <= hash_of("\ud800") < HASH_SIZE


def test_ring_spreads_the_load_over_a_sensible_number_of_slices() -> None:
    for layout in Layout:
        ring = lay_out(["a", "b", "c", "d"], layout=layout)
        counts = Counter(ring.owner(str(number)) for number in range(2_000))
        assert all(330 < counts[name] < 670 for name in "abcd"), layout
    for vnodes in (0, 100_001):
        with naming(vnodes), pytest.raises(ConfigError, match="slice"):
            lay_out(["a"], vnodes=vnodes)
        with naming(vnodes), pytest.raises(ConfigError, match="slice"):
            lay_out([])
