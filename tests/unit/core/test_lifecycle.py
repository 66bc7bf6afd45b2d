"""What is started and stopped can be used with `async with`."""

import pytest

from postroad.core import Lifecycle


class Thing(Lifecycle):
    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails
        self.happened: list[str] = []

    async def start(self) -> None:
        self.happened.append("start")
        if self._fails:
            raise OSError("planted")

    async def stop(self) -> None:
        self.happened.append("stop")


async def test_context_manager_starts_and_stops_also_after_an_error() -> None:
    thing = Thing()
    async with thing as used:
        assert used is thing
        assert thing.happened == ["start"]
    assert thing.happened == ["start", "stop"]

    thing = Thing()
    with pytest.raises(KeyError):
        async with thing:
            raise KeyError("planted")
    assert thing.happened == ["start", "stop"]

    thing = Thing(fails=True)
    with pytest.raises(OSError, match="planted"):
        async with thing:
            thing.happened.append("used")
    assert thing.happened == ["start"]


def test_start_and_stop_must_be_given() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Lifecycle()  # type: ignore[abstract]  # It must fail at run time too.
