"""Files of comma-separated values do what every input does."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from postroad.pipeline import InputConnector, Segment
from postroad.pipeline.connectors import CsvInput
from tests.contract.pipeline_media_behaviour import (
    InputBehaviour,
    PortableInputBehaviour,
    Source,
    UndecodableBehaviour,
)
from tests.contract.pipeline_media_files import IN, FileInputBehaviour, FileSource


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
    InputBehaviour, PortableInputBehaviour, UndecodableBehaviour, FileInputBehaviour
):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        return CsvFiles(tmp_path)

    @pytest.fixture
    def relative(self, home: Path) -> Source:
        return CsvFiles(IN)
