"""A pytest plugin for runs in which nothing may be skipped.

A skip is a promise that somebody else runs the test. In continuous integration there is nobody
else, so a missing tool there must fail the run and not shorten it. Neither may a process of the run
that died: the tests it had yet to run were never run, and the run says that it was interrupted.
"""

from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


class RequireAll:
    """Turns skipped tests and skipped modules into failures; expected failures stay as they are."""

    def __init__(self) -> None:
        self.has_run_everything = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        return report if hasattr(report, "wasxfail") else _refuse_skip(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        return _refuse_skip(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self) -> None:
        """A process of pytest-xdist died."""
        self.has_run_everything = False

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.has_run_everything:
            session.exitstatus = pytest.ExitCode.INTERRUPTED


def _refuse_skip(report: Report) -> Report:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"POSTROAD_REQUIRE_ALL=1 allows no skip, but: {reason}"
    return report
