"""Files of comma-separated values do what every input does."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest

from postroad.pipeline import InputMedium, Segment
from postroad.pipeline.media import CsvInput
from tests.contract.pipeline_media_behaviour import (
    InputBehaviour,
    PortableInputBehaviour,
    Source,
    UndecodableBehaviour,
)
from tests.contract.pipeline_media_files import IN, FileInputBehaviour


class CsvFiles(Source):
    """Files with a few records each."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._files = 0

    async def put(self, segments: Sequence[Segment]) -> None:
        for start in range(0, len(segments), 10):
            text = StringIO(newline="")
            writer = csv.DictWriter(text, ["n", "text"])
            writer.writeheader()
            writer.writerows(segments[start : start + 10])
            self._write(text.getvalue())

    async def put_undecodable(self) -> None:
        self._write("n,text\none,is no number\n")

    def _write(self, content: str) -> None:
        self._files += 1
        path = self._directory / f"{self._files:03d}.csv"
        path.write_text(content, newline="")

    def medium(self) -> InputMedium:
        return CsvInput(str(self._directory / "*.csv"), columns={"n": "int"}, slice_bytes=30)


class TestCsvInput(
    InputBehaviour, PortableInputBehaviour, UndecodableBehaviour, FileInputBehaviour
):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        return CsvFiles(tmp_path)

    @pytest.fixture
    def relative(self, home: Path) -> Source:
        return CsvFiles(IN)
