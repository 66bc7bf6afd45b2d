"""One Spark session for the tests of this folder, which run in one process.

`tests/support/watchdog.py` sees to the latter.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.servers.spark import shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent


@pytest.fixture
def spark() -> SparkSession:
    return shared_session.get()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the session after the last test of the folder."""
    if nextitem is None or nextitem.path.parent != FOLDER:
        shared_session.stop()
