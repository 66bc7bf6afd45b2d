"""What every connector of files does, beside what all media do.

An input inherits `FileInputBehaviour`, an output `FileOutputBehaviour`; `kind` is what makes their
sources and targets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from postroad.pipeline import InputConnector, Segment
from postroad.pipeline.connectors import Committable, Position, RawRecords
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from tests.contract.pipeline_media_harness import (
    RUN,
    SEGMENTS,
    Crash,
    Source,
    Target,
    count_to,
    in_order,
    opened,
    plain,
    read_elsewhere,
    settling,
    stage,
    stage_elsewhere,
)

IN, OUT = Path("in"), Path("out")
"""Where relative sources and targets are."""


class InDirectories:
    """A process that makes media in `home`, and others that use them `elsewhere`."""

    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        home = tmp_path / "home"
        (home / IN).mkdir(parents=True)
        monkeypatch.chdir(home)
        return home

    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> Path:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        return elsewhere


class FileSource(Source):
    """A directory with files of a few segments each."""

    suffix: str

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._files = 0

    async def put(self, segments: Sequence[Segment]) -> None:
        for start in range(0, len(segments), 10):
            self.write(segments[start : start + 10], self.next_file())

    def next_file(self) -> Path:
        self._files += 1
        return self._directory / f"{self._files:03d}.{self.suffix}"

    @property
    def pattern(self) -> str:
        return str(self._directory / f"*.{self.suffix}")

    def write(self, segments: Sequence[Segment], path: Path) -> None:
        """Make a file of segments."""
        raise AssertionError("each source has its own")


class FileInputBehaviour(InDirectories):
    """For inputs that are files."""

    kind: type[FileSource]

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        return self.kind(tmp_path)

    @pytest.fixture
    def relative(self, home: Path) -> Source:
        return self.kind(IN)

    async def test_a_relative_path_is_that_of_the_process_that_made_the_medium(
        self, relative: Source, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await relative.put(count_to(SEGMENTS))
        places, chunks = await read_all(relative.connector())
        connector = relative.connector()
        monkeypatch.chdir(elsewhere)
        places_there, chunks_there = await read_all(pickle.loads(pickle.dumps(connector)))
        assert places_there == places
        assert list(map(plain, chunks_there)) == list(map(plain, chunks))
        by_another = await asyncio.to_thread(read_elsewhere, connector, places)
        assert list(map(plain, by_another)) == list(map(plain, chunks))
        assert sum(len(it.positions) for part in chunks for it in part) == SEGMENTS

    async def test_names_are_as_the_path_has_them(self, relative: Source, home: Path) -> None:
        """Ids follow from them."""
        await relative.put(count_to(SEGMENTS))
        places, chunks = await read_all(relative.connector())
        expected = {str(IN / it) for it in os.listdir(home / IN)}
        assert {it["file"] for it in places} == expected
        assert {it.source for part in chunks for it in part} == expected


async def read_all(connector: InputConnector) -> tuple[list[Position], list[list[RawRecords]]]:
    """All slices of an input, and what they have."""
    await connector.open([])
    places: list[Position] = []
    after: Position | None = None
    while slices := await connector.plan_splits(after, SEGMENTS):
        places += [it.position for it in slices]
        after = slices[-1].next_position
    return places, [list(connector.read(it)) for it in places]


class FileTarget(Target):
    """A directory that an output writes files to."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    async def leftovers(self) -> list[str]:
        return sorted(it.name for it in self.staged())

    def staged(self) -> list[Path]:
        """Files that are staged."""
        return list((self.directory / "_staging").iterdir())

    def readable(self) -> list[Path]:
        """Files that readers of the directory see."""
        return [it for it in self.directory.iterdir() if it.is_file()]

    def marks(self) -> list[Path]:
        """What says that something was published."""
        return list((self.directory / "_published").iterdir())


class FileOutputBehaviour(InDirectories):
    """For outputs that are directories of files."""

    kind: type[FileTarget]

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return self.kind(tmp_path)

    @pytest.fixture
    def directory(self, tmp_path: Path) -> FileTarget:
        return self.kind(tmp_path / "files")

    @pytest.fixture
    def relative(self, home: Path) -> FileTarget:
        return self.kind(OUT)

    async def test_a_relative_path_is_that_of_the_process_that_made_the_medium(
        self, relative: FileTarget, home: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connector = relative.connector()
        monkeypatch.chdir(elsewhere)
        async with settling(relative, connector) as desk:
            here = stage(pickle.loads(pickle.dumps(connector)), "0", count_to(3))
            there = await asyncio.to_thread(
                stage_elsewhere, connector, f"{RUN}-1", [3, 4], count_to(5, 3)
            )
            assert there is not None
            await settle(desk, [here, there])
        assert os.listdir(elsewhere) == []
        monkeypatch.chdir(home)
        assert in_order(await relative.published()) == count_to(5)
        assert await relative.leftovers() == []

    async def test_a_process_that_runs_elsewhere_does_not_take_it_for_published(
        self, relative: FileTarget, home: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await settle_and_crash(relative, monkeypatch)
        monkeypatch.chdir(elsewhere)
        async with settling(relative, relative.connector()) as desk:
            assert (await desk.status()).unpublished == 1
        monkeypatch.chdir(home)
        async with settling(relative, relative.connector()) as desk:
            assert (await desk.status()).unpublished == 0
        assert in_order(await relative.published()) == count_to(3)

    async def test_what_vanished_is_not_taken_for_published(
        self, directory: FileTarget, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        connector = directory.connector()
        async with settling(directory, connector) as desk:
            staged = stage(connector, "0", count_to(3))
            (file,) = directory.staged()
            away = file.rename(tmp_path / "away")
            with caplog.at_level(logging.WARNING, "postroad.pipeline"):
                await settle(desk, [staged])
            assert "is missing, and was not committed" in caplog.text
            await desk.next_deliveries()
            assert (await desk.status()).unpublished == 1
            away.rename(file)
            await desk.next_deliveries()
            assert (await desk.status()).unpublished == 0
        assert in_order(await directory.published()) == count_to(3)

    async def test_what_could_not_be_moved_is_not_taken_for_published_when_it_vanishes(
        self, directory: FileTarget
    ) -> None:
        async with opened(directory) as connector:
            staged = stage(connector, "0", count_to(3))
            (file,) = directory.staged()
            in_the_way = directory.directory / file.name
            in_the_way.mkdir()
            with pytest.raises(OSError, match="directory"):
                await connector.commit(staged)
            in_the_way.rmdir()
            file.unlink()
            with pytest.raises(OSError, match="was not committed"):
                await connector.commit(staged)

    async def test_what_is_gone_for_good_is_given_up_by_hand(self, directory: FileTarget) -> None:
        async with opened(directory) as connector:
            staged = stage(connector, "0", count_to(3))
            (file,) = directory.staged()
            file.unlink()
            (directory.directory / file.name).touch()
            await connector.commit(staged)

    async def test_what_a_reader_took_away_after_a_crash_is_not_missed(
        self, directory: FileTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody has noted that it was published."""
        await settle_and_crash(directory, monkeypatch, is_published=True)
        (file,) = directory.readable()
        file.unlink()
        for _ in range(2):
            async with settling(directory, directory.connector()) as desk:
                assert (await desk.status()).unpublished == 0
            assert directory.readable() == []
        assert directory.marks() == []

    async def test_a_crash_before_it_is_moved(
        self, directory: FileTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(self: Path, target: Path) -> Path:
            raise Crash

        connector = directory.connector()
        async with settling(directory, connector) as desk:
            staged = stage(connector, "0", count_to(3))
            with monkeypatch.context() as patched, pytest.raises(Crash):
                patched.setattr(Path, "replace", crash)
                await settle(desk, [staged])
        async with settling(directory, directory.connector()):
            assert in_order(await directory.published()) == count_to(3)

    async def test_marks_do_not_pile_up(self, directory: FileTarget) -> None:
        connector = directory.connector()
        async with settling(directory, connector) as desk:
            staged = [stage(connector, str(n), count_to(n + 1, n)) for n in range(5)]
            await settle(desk, staged)
            assert len(directory.marks()) == 1
            assert in_order(await directory.published()) == count_to(5)
        async with opened(directory):
            assert directory.marks() == []


async def settle(desk: JobCoordinator, staged: Sequence[Committable]) -> None:
    """Settle a batch that wrote this."""
    await desk.commit_batch("run", 1, BatchResult([], staged=[("out", it) for it in staged]))


async def settle_and_crash(
    target: Target, monkeypatch: pytest.MonkeyPatch, *, is_published: bool = False
) -> None:
    """Settle three segments, and crash before or after they are published."""
    connector = target.connector()
    publish = connector.commit

    async def crash(staged: Committable) -> None:
        if is_published:
            await publish(staged)
        raise Crash

    async with settling(target, connector) as desk:
        staged = stage(connector, "0", count_to(3))
        with monkeypatch.context() as patched, pytest.raises(Crash):
            patched.setattr(connector, "commit", crash)
            await settle(desk, [staged])
