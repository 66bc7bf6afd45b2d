"""Files of any kind that is known here, told by how their names end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from postroad.core.errors import ConfigError

from .comma_separated import CsvInput
from .lines import JsonLinesInput
from .medium import InputConnector
from .parquet import ParquetInput

_FORMATS: Mapping[str, Callable[..., InputConnector]] = {
    "csv": CsvInput,
    "lines": JsonLinesInput,
    "parquet": ParquetInput,
}
_ENDINGS: Mapping[str, str] = {
    ".csv": "csv",
    ".json": "lines",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tsv": "csv",
}


def files_input(path: str, format: str | None = None, **options: Any) -> InputConnector:
    """Files of lines, comma-separated values or Parquet.

    Args:
        path: of a file, or a pattern such as `in/*.csv`.
        format: `lines`, `csv` or `parquet`; by how the path ends, if it is not given.
        options: those of the format.

    Raises:
        ConfigError: it is not known which format it is.
    """
    ending = PurePath(path).suffix.lower()
    found = _ENDINGS.get(ending, "") if format is None else format
    if found not in _FORMATS:
        known = ", ".join(sorted(_FORMATS))
        raise ConfigError(f"option 'format' is needed for {path!r}: one of {known}")
    if ending == ".tsv" and found == "csv":
        options = {"delimiter": "\t"} | options
    return _FORMATS[found](path, **options)
