"""A pytest plugin that fails a run in which a test takes long and does not say so.

A test with the marker `slow`, which most have by their folder, may take its time; all others are
there to be run again and again. What a test waits for a core that others use does not count.
Where a change is accepted (`POSTROAD_SLOW_MACHINE=1`, see tests/conftest.py) such tests are named
and fail nothing: a slow machine is not the change's fault.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

LIMIT_S = 5.0
_STATISTICS = Path("/proc/self/schedstat")
_WAITED = "seconds without a core"


class Slowness:
    """Collects the tests that take more than LIMIT_S without being marked."""

    def __init__(self, *, fails_the_run: bool = True, limit_s: float = LIMIT_S) -> None:
        self._fails_the_run = fails_the_run
        self._limit_s = limit_s
        self._before_s = 0.0
        self.too_slow: dict[str, float] = {}

    def pytest_runtest_setup(self) -> None:
        self._before_s = _waited_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call":
            report.user_properties.append((_WAITED, _waited_s() - self._before_s))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        waited_s = dict(report.user_properties).get(_WAITED, 0.0)
        took_s = report.duration - float(str(waited_s))
        if report.when == "call" and "slow" not in report.keywords and took_s > self._limit_s:
            self.too_slow[report.nodeid] = took_s

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._fails_the_run and self.too_slow and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, duration_s in sorted(self.too_slow.items()):
            terminalreporter.write_line(
                f"TOO SLOW {name}: {duration_s:.1f} s; more than {self._limit_s:g} s need "
                "the marker `slow`, a folder of slow tests, or less work",
                red=True,
            )


def _waited_s() -> float:
    """How long this process was ready to run and did not, as far as the system tells."""
    try:
        return int(_STATISTICS.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
