"""Base class of components that are started and stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifecycle(ABC):
    """A component with `start()` and `stop()`; `async with` calls both."""

    @abstractmethod
    async def start(self) -> None:
        """Start the component."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the component; a second call, or one without a start, has no effect."""

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
