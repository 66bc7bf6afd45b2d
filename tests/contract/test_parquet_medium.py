"""Parquet files do what every connector does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from postroad.pipeline import InputConnector, OutputConnector, Segment
from postroad.pipeline.connectors import ParquetInput, ParquetOutput
from tests.contract.pipeline_media_behaviour import (
    InputBehaviour,
    OutputBehaviour,
    PortableInputBehaviour,
    PortableOutputBehaviour,
    Source,
    Target,
    UnwritableBehaviour,
)
from tests.contract.pipeline_media_files import (
    IN,
    OUT,
    FileInputBehaviour,
    FileOutputBehaviour,
    FileSource,
    FileTarget,
)


class ParquetFiles(FileSource):
    """In groups of rows that slices do not fit."""

    suffix = "parquet"

    def write(self, segments: Sequence[Segment], path: Path) -> None:
        table = pyarrow.Table.from_pylist(list(segments))
        pyarrow.parquet.write_table(table, path, row_group_size=4)

    def connector(self) -> InputConnector:
        return ParquetInput(self.pattern, split_segments=3)


class TestParquetInput(InputBehaviour, PortableInputBehaviour, FileInputBehaviour):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        return ParquetFiles(tmp_path)

    @pytest.fixture
    def relative(self, home: Path) -> Source:
        return ParquetFiles(IN)


class ParquetDirectory(FileTarget):
    """A directory of Parquet files."""

    def connector(self) -> OutputConnector:
        return ParquetOutput(str(self.directory), {"n": "int64", "text": "string"})

    async def published(self) -> list[Segment]:
        paths = sorted(self.directory.glob("*.parquet"))
        return [row for it in paths for row in pyarrow.parquet.read_table(it).to_pylist()]


class InferredDirectory(ParquetDirectory):
    """The same, with types as they come."""

    def connector(self) -> OutputConnector:
        return ParquetOutput(str(self.directory))


class ParquetOutputBehaviour(OutputBehaviour, UnwritableBehaviour, PortableOutputBehaviour):
    """With and without a schema."""


class TestParquetOutput(ParquetOutputBehaviour, FileOutputBehaviour):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return ParquetDirectory(tmp_path)

    @pytest.fixture
    def directory(self, tmp_path: Path) -> FileTarget:
        return ParquetDirectory(tmp_path / "files")

    @pytest.fixture
    def relative(self, home: Path) -> FileTarget:
        return ParquetDirectory(OUT)


class TestInferredOutput(ParquetOutputBehaviour):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return InferredDirectory(tmp_path)
