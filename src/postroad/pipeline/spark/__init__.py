"""Jobs on Apache Spark. Needs the `spark` extra; nothing of it is imported before it is used."""

from .java import find_java_home
from .session import spark_session, start_spark, stop_spark
from .settings import SparkSettings, configuration, environment

__all__ = [
    "SparkSettings",
    "configuration",
    "environment",
    "find_java_home",
    "spark_session",
    "start_spark",
    "stop_spark",
]
