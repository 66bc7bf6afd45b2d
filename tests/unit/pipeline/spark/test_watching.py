"""When a session is lost, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from postroad.pipeline.spark import watching
from postroad.pipeline.spark.watching import LOST_S, WAITING_S, Judge, Master, Standing, Watch
from tests.support.deadlines import eventually

URL = "spark://north:7077"


def standing(master: Master, executors: int = 0, *, is_busy: bool = True) -> Standing:
    return Standing(False, executors, is_busy, master)


def test_session_that_works_is_left_alone() -> None:
    judge = Judge(URL)
    for now in range(0, 600, 5):
        verdict = judge.judge(standing(Master.KNOWS, executors=2), now)
        assert not verdict.text
        assert not verdict.is_lost


def test_stopped_session_is_lost_at_once() -> None:
    verdict = Judge(URL).judge(Standing(True, 0, False, Master.NONE), 0.0)

    assert verdict.is_lost
    assert URL in verdict.text


def test_silent_master_is_said_while_executors_work_and_lost_without_them() -> None:
    judge = Judge(URL)
    judge.judge(standing(Master.SILENT, executors=2), 0.0)
    working = judge.judge(standing(Master.SILENT, executors=2), 500.0)
    alone = judge.judge(standing(Master.SILENT), 505.0)
    lost = judge.judge(standing(Master.SILENT), 505.0 + LOST_S)

    assert working.text.startswith(f"the Spark master at {URL} does not answer")
    assert (working.is_lost, alone.is_lost, lost.is_lost) == (False, False, True)


def test_master_that_is_back_in_time_loses_nothing() -> None:
    judge = Judge(URL)
    judge.judge(standing(Master.SILENT), 0.0)
    judge.judge(standing(Master.KNOWS, executors=1), LOST_S / 2)

    assert not judge.judge(standing(Master.SILENT), LOST_S).is_lost


def test_master_that_forgot_the_application_has_nothing_more_for_it() -> None:
    judge = Judge(URL)

    assert not judge.judge(standing(Master.FORGOT, executors=2), 0.0).is_lost
    assert judge.judge(standing(Master.FORGOT, executors=2), LOST_S).is_lost
    assert Judge(URL).judge(standing(Master.FORGOT), 0.0).is_lost


def test_job_that_waits_for_executors_is_said_and_not_lost() -> None:
    for master in (Master.KNOWS, Master.NONE):
        judge = Judge(URL)
        judge.judge(standing(master), 0.0)
        idle = judge.judge(standing(master, is_busy=False), WAITING_S)
        waiting = judge.judge(standing(master), WAITING_S)

        assert not idle.text
        assert "no executor for" in waiting.text
        assert not waiting.is_lost


async def test_loss_is_said_once_and_a_session_of_somebody_else_is_left_running(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[Standing] = []

    def look(context: Any) -> Standing:
        looks.append(standing(Master.KNOWS if len(looks) > 5 else Master.FORGOT, executors=0))
        return looks[-1]

    monkeypatch.setattr(watching, "look", look)
    monkeypatch.setattr(watching, "LOOK_S", 0.001)
    session: Any = SimpleNamespace(_jsparkSession=None, sparkContext=SimpleNamespace(master=URL))
    watch = Watch(session, "clearing", may_stop=False)
    done = asyncio.Event()

    async def work() -> None:
        await done.wait()

    with caplog.at_level(logging.WARNING, "postroad.pipeline"):
        running = asyncio.create_task(watch.run(work()))
        await eventually(lambda: len(looks) > 8)
        done.set()
        assert await running is None

    assert not watch.is_lost
    assert [record.getMessage() for record in caplog.records] == [
        f"job 'clearing': the Spark master at {URL} answers, and does not know the application: "
        "it was started anew; the job has 0 executors",
        f"job 'clearing': the cluster {URL} works again",
    ]
