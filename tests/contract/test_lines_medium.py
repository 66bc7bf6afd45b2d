"""Files of JSON lines do what every medium does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from postroad.pipeline import InputMedium, LinesInput, LinesOutput, OutputMedium, Segment
from tests.contract.pipeline_media_behaviour import (
    InputBehaviour,
    OutputBehaviour,
    PortableInputBehaviour,
    PortableOutputBehaviour,
    Source,
    Target,
    UndecodableBehaviour,
    UnwritableBehaviour,
)
from tests.contract.pipeline_media_files import (
    IN,
    OUT,
    FileInputBehaviour,
    FileOutputBehaviour,
    FileTarget,
)


class LineFiles(Source):
    """Files with a few lines each."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._files = 0

    async def put(self, segments: Sequence[Segment]) -> None:
        for start in range(0, len(segments), 10):
            lines = map(msgspec.json.encode, segments[start : start + 10])
            self._write(b"\n".join(lines) + b"\n")

    async def put_undecodable(self) -> None:
        self._write(b"no json\n")

    def _write(self, content: bytes) -> None:
        self._files += 1
        (self._directory / f"{self._files:03d}.jsonl").write_bytes(content)

    def medium(self) -> InputMedium:
        return LinesInput(str(self._directory / "*.jsonl"), slice_bytes=80)


class TestLinesInput(
    InputBehaviour, PortableInputBehaviour, UndecodableBehaviour, FileInputBehaviour
):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        return LineFiles(tmp_path)

    @pytest.fixture
    def relative(self, home: Path) -> Source:
        return LineFiles(IN)


class LinesDirectory(FileTarget):
    """A directory of files of lines."""

    def medium(self) -> OutputMedium:
        return LinesOutput(str(self.directory))

    async def published(self) -> list[Segment]:
        paths = sorted(self.directory.glob("*.jsonl"))
        return [msgspec.json.decode(line) for it in paths for line in it.read_bytes().splitlines()]


class TestLinesOutput(
    OutputBehaviour, UnwritableBehaviour, PortableOutputBehaviour, FileOutputBehaviour
):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return LinesDirectory(tmp_path)

    @pytest.fixture
    def directory(self, tmp_path: Path) -> FileTarget:
        return LinesDirectory(tmp_path / "files")

    @pytest.fixture
    def relative(self, home: Path) -> FileTarget:
        return LinesDirectory(OUT)
