"""A pytest plugin that fails a run in which a test takes long and does not say so.

A test with the marker `slow`, which most have by their folder, may take its time; all others are
there to be run again and again.
"""

from __future__ import annotations

import pytest

LIMIT_S = 5.0


class Slowness:
    """Collects the tests that take more than LIMIT_S without being marked."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self.too_slow: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        is_marked = "slow" in report.keywords
        if report.when == "call" and not is_marked and report.duration > self._limit_s:
            self.too_slow[report.nodeid] = report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.too_slow and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, duration_s in sorted(self.too_slow.items()):
            terminalreporter.write_line(
                f"TOO SLOW {name}: {duration_s:.1f} s; more than {self._limit_s:g} s need "
                "the marker `slow`, a folder of slow tests, or less work",
                red=True,
            )
