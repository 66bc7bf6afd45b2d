"""Files of JSON lines do what every connector does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from postroad.pipeline import (
    InputConnector,
    JsonLinesInput,
    JsonLinesOutput,
    OutputConnector,
    Segment,
)
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

    def connector(self) -> OutputConnector:
        return JsonLinesOutput(str(self.directory))

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
