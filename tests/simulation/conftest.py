"""The quick tier has the first seeds of each scenario, the program around them and threads."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiers import TIER, Tier

FOLDER = Path(__file__).parent
QUICK_FILES = ("test_flows_coverage.py", "test_program.py", "test_worker_threads.py")
QUICK_TESTS = ("test_seeds_pass",)


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    """Nodes that are killed leave their handlers at the logger of all."""
    logger = logging.getLogger("postroad")
    before = [*logger.handlers]
    yield
    logger.handlers[:] = before


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if TIER is not Tier.QUICK:
        return
    left_out = [item for item in items if item.path.parent == FOLDER and not _is_quick(item)]
    config.hook.pytest_deselected(items=left_out)
    unwanted = set(left_out)
    items[:] = [item for item in items if item not in unwanted]


def _is_quick(item: pytest.Item) -> bool:
    return item.path.name in QUICK_FILES or getattr(item, "originalname", "") in QUICK_TESTS
