"""The fastest loop there is, and asyncio's own where that is it."""

import asyncio
import importlib.util

import pytest

from postroad.net import event_loop as loop


def test_run_returns_the_result() -> None:
    async def main() -> int:
        await asyncio.sleep(0)
        return 7

    assert loop.run(main()) == 7


def test_run_passes_errors_on() -> None:
    async def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop.run(main())


def test_uvloop_where_it_is_installed() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> bool:
        return isinstance(asyncio.get_running_loop(), uvloop.Loop)

    assert loop.run(main())


def test_asyncio_where_uvloop_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        loop, "find_spec", lambda name: None if name == "uvloop" else find_spec(name)
    )
    assert loop.loop_factory() is None
    assert loop.run(main()).startswith("asyncio")
