"""Lists in memory do what every connector does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from postroad.pipeline import InputConnector, MemoryInput, MemoryOutput, OutputConnector, Segment
from tests.contract.pipeline_media_behaviour import (
    InputBehaviour,
    OutputBehaviour,
    Source,
    Target,
    UnwritableBehaviour,
)


class Listed(Source):
    """A list that every process has."""

    def __init__(self) -> None:
        super().__init__()
        self._segments: list[Segment] = []

    async def put(self, segments: Sequence[Segment]) -> None:
        self._segments += segments

    def connector(self) -> InputConnector:
        return MemoryInput(self._segments, split_segments=3)


class TestSeqInput(InputBehaviour):
    @pytest.fixture
    def source(self) -> Source:
        return Listed()


class Kept(Target):
    """What is published, in the memory that all processes of a test are in."""

    def __init__(self) -> None:
        super().__init__()
        self._output = MemoryOutput()

    def connector(self) -> OutputConnector:
        return self._output

    async def published(self) -> list[Segment]:
        return self._output.segments


class TestSeqOutput(OutputBehaviour, UnwritableBehaviour):
    @pytest.fixture
    def target(self) -> Target:
        return Kept()
