"""Jobs on Apache Spark. Needs the `spark` extra; nothing of it is imported before it is used."""

from typing import TYPE_CHECKING, Any

from .java import find_java_home
from .session import require_packages, spark_session, start_spark, stop_spark
from .settings import SparkConfig, configuration, environment

if TYPE_CHECKING:
    from .runner import SparkRunner

__all__ = [
    "SparkRunner",
    "SparkConfig",
    "configuration",
    "environment",
    "find_java_home",
    "spark_session",
    "start_spark",
    "stop_spark",
]


def __getattr__(name: str) -> Any:
    # What needs the extra, with a word about it where it is missing.
    if name == "SparkRunner":
        require_packages()
        from .runner import SparkRunner

        return SparkRunner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
