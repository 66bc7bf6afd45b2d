"""Files of JSON lines, CSV and Parquet do what every connector does."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow
import pyarrow.parquet
import pytest

from postroad.pipeline import (
    InputConnector,
    JsonLinesInput,
    JsonLinesOutput,
    OutputConnector,
    Segment,
)
from postroad.pipeline.connectors import CsvInput, ParquetInput, ParquetOutput
from tests.contract.pipeline_media_behaviour import (
    InputBehaviour,
    OutputBehaviour,
    PortableInputBehaviour,
    PortableOutputBehaviour,
    UndecodableBehaviour,
    UnwritableBehaviour,
)
from tests.contract.pipeline_media_files import (
    FileInputBehaviour,
    FileOutputBehaviour,
    FileSource,
    FileTarget,
)


class LineFiles(FileSource):
    suffix = "jsonl"

    def write(self, segments: Sequence[Segment], path: Path) -> None:
        path.write_bytes(b"".join(msgspec.json.encode(it) + b"\n" for it in segments))

    async def put_undecodable(self) -> None:
        self.next_file().write_bytes(b"no json\n")

    def connector(self) -> InputConnector:
        return JsonLinesInput(self.pattern, split_bytes=80)


class TestLinesInput(
    FileInputBehaviour, InputBehaviour, PortableInputBehaviour, UndecodableBehaviour
):
    kind = LineFiles


class CsvFiles(FileSource):
    suffix = "csv"

    def write(self, segments: Sequence[Segment], path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["n", "text"])
            writer.writeheader()
            writer.writerows(segments)

    async def put_undecodable(self) -> None:
        self.next_file().write_text("n,text\none,is no number\n")

    def connector(self) -> InputConnector:
        return CsvInput(self.pattern, columns={"n": "int"}, split_bytes=30)


class TestCsvInput(
    FileInputBehaviour, InputBehaviour, PortableInputBehaviour, UndecodableBehaviour
):
    kind = CsvFiles


class ParquetFiles(FileSource):
    """In groups of rows that splits do not fit."""

    suffix = "parquet"

    def write(self, segments: Sequence[Segment], path: Path) -> None:
        table = pyarrow.Table.from_pylist(list(segments))
        pyarrow.parquet.write_table(table, path, row_group_size=4)

    def connector(self) -> InputConnector:
        return ParquetInput(self.pattern, split_segments=3)


class TestParquetInput(FileInputBehaviour, InputBehaviour, PortableInputBehaviour):
    kind = ParquetFiles


class LinesDirectory(FileTarget):
    def connector(self) -> OutputConnector:
        return JsonLinesOutput(str(self.directory))

    async def published(self) -> list[Segment]:
        paths = sorted(self.directory.glob("*.jsonl"))
        return [msgspec.json.decode(line) for it in paths for line in it.read_bytes().splitlines()]


class TestLinesOutput(
    FileOutputBehaviour, OutputBehaviour, UnwritableBehaviour, PortableOutputBehaviour
):
    kind = LinesDirectory


class ParquetDirectory(FileTarget):
    def connector(self) -> OutputConnector:
        return ParquetOutput(str(self.directory), {"n": "int64", "text": "string"})

    async def published(self) -> list[Segment]:
        paths = sorted(self.directory.glob("*.parquet"))
        return [row for it in paths for row in pyarrow.parquet.read_table(it).to_pylist()]


class TestParquetOutput(
    FileOutputBehaviour, OutputBehaviour, UnwritableBehaviour, PortableOutputBehaviour
):
    kind = ParquetDirectory


class InferredDirectory(ParquetDirectory):
    """With types as they come."""

    def connector(self) -> OutputConnector:
        return ParquetOutput(str(self.directory))


class TestInferredOutput(OutputBehaviour, UnwritableBehaviour, PortableOutputBehaviour):
    @pytest.fixture
    def target(self, tmp_path: Path) -> FileTarget:
        return InferredDirectory(tmp_path)
