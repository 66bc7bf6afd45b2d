"""`python -m tests.which` knows tests for every module."""

from __future__ import annotations

import pytest

from tests.support.source_tree import PACKAGE, ROOT, package_files
from tests.support.tiers import sample
from tests.which import guards_of


@pytest.mark.slow
def test_every_module_has_tests_that_guard_it() -> None:
    modules = [path for path in package_files() if not path.name.startswith("_")]
    unguarded = [path for path in sample(modules, 30) if not guards_of(path)]
    assert not unguarded


@pytest.mark.parametrize(
    ("module", "first"),
    [
        ("durable/bridges/protocol.py", "tests/unit/durable/bridges/test_protocol.py"),
        ("net/connections/pool.py", "tests/unit/net/test_pool.py"),
    ],
)
@pytest.mark.slow
def test_unit_tests_of_a_module_come_first(module: str, first: str) -> None:
    assert guards_of(PACKAGE / module)[0] == ROOT / first
