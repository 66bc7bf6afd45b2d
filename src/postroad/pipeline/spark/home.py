"""A SPARK_HOME whose Python workers start faster."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from postroad.core.errors import ConfigError
from postroad.pipeline.spark.config import SparkConfig
from postroad.pipeline.spark.java import find_cache_dir

_PARTS = ("bin", "conf", "jars", "sbin")


def find_quick_home(settings: SparkConfig) -> Path | None:
    """The installed Spark without the ZIP file of pyspark's sources; None if it cannot be had.

    Spark puts that ZIP file before everything else that its Python workers import from, and each
    of them would compile pyspark anew: a quarter of what it takes to start. Without it, workers
    import the installed package. That is the same one only on this machine, with this Python.
    """
    spec = importlib.util.find_spec("pyspark")
    is_here = settings.is_local and settings.python == sys.executable
    if not is_here or spec is None or spec.origin is None:
        return None
    try:
        return make_quick_home(Path(spec.origin).parent, find_cache_dir())
    except (ConfigError, OSError):
        # It only takes longer then.
        return None


def make_quick_home(installed: Path, cache: Path) -> Path:
    """A directory below `cache` with links to the parts of an installed Spark."""
    home = cache / f"spark-{hashlib.sha256(str(installed).encode()).hexdigest()[:16]}"
    home.mkdir(exist_ok=True)
    for part in _PARTS:
        if (installed / part).exists():
            try:
                (home / part).symlink_to(installed / part)
            except FileExistsError:
                continue  # From before, or by another process that begins at the same time.
    return home
