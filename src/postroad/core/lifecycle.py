"""What is started and stopped can be used with `async with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifecycle(ABC):
    """Base of everything that runs: `async with thing:` starts it and stops it in the end."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to run."""

    @abstractmethod
    async def stop(self) -> None:
        """End; doing so twice, or without a start, does nothing."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
