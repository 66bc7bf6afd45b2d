"""Jobs on Apache Spark. Needs the `spark` extra; nothing of it is imported before it is used."""

from typing import TYPE_CHECKING, Any

from postroad.pipeline.spark.config import SparkConfig, configuration, environment
from postroad.pipeline.spark.java import find_java_home
from postroad.pipeline.spark.session import require_packages, spark_session, start_spark, stop_spark

if TYPE_CHECKING:
    from postroad.pipeline.spark.runner import SparkRunner

__all__ = [
    "SparkConfig",
    "SparkRunner",
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
        from postroad.pipeline.spark.runner import SparkRunner

        return SparkRunner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
