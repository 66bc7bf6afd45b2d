"""Tries flows apart from others that may be what ended the process; see `quarantine`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from postroad.durable.store.ledger import Ledger

from . import quarantine, tables
from .alarm import now_ms
from .background import LOADING_MAX
from .events import Survived
from .head import Head, show_id
from .quarantine import Trial

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger("postroad.flows")


class Trials:
    """The trials of one start."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._planned: list[Trial] = []
        self._guilty: list[Head] = []
        self._timers: list[asyncio.TimerHandle] = []

    def prepare(self, ledger: Ledger) -> None:
        """Decide who goes on at once, who is tried when, and who is parked; in a commit."""
        config, database = self._engine.config, ledger.database
        was_killed = tables.begin_running(database)
        at_work, waiting = tables.read_suspicious(database)
        changed = {it.id: it for it in at_work} if was_killed else {}
        if was_killed:
            quarantine.charge(at_work)
        self._guilty = [it for it in at_work if quarantine.is_guilty(it)]
        for head in self._guilty:
            quarantine.convict(head, ledger.now_ms)
        wanted = [
            it
            for it in [*at_work, *waiting]
            if quarantine.is_to_be_tried(it, config.recoveries_max)
        ]
        trial_ms = max(round(config.trial_s * 1000), 1)
        self._planned = quarantine.plan(wanted, ledger.now_ms, trial_ms)
        for trial in self._planned:
            for head in trial.heads:
                quarantine.put_off(head, trial.begins_ms, ledger.now_ms)
        changed |= {it.id: it for it in wanted}
        for head in changed.values():
            tables.update_head(database, tables.head_row(head), with_arguments=False)

    def start(self) -> None:
        """Tell what was decided, and acquit those that are tried if the process goes on."""
        for head in self._guilty:
            assert head.trouble is not None
            logger.error(
                "flow %s of %s is parked: %s. `postroad flow retry %s` tries it once more",
                show_id(head.id), head.name, head.trouble.detail, show_id(head.id),
            )  # fmt: skip
        if self._planned:
            logger.warning(
                "%d flows were at work whenever the process was killed, and came no further: they "
                "are tried again a few at a time, the last of them in %.1f s",
                sum(len(it.heads) for it in self._planned),
                (self._planned[-1].begins_ms - now_ms()) / 1000,
            )  # fmt: skip
        loop = asyncio.get_running_loop()
        for trial in self._planned:
            after_s = max(trial.ends_ms - now_ms(), 0) / 1000
            self._timers.append(loop.call_later(after_s, self._acquit, trial))

    def close(self) -> None:
        """Acquit nobody any more."""
        for timer in self._timers:
            timer.cancel()

    def _acquit(self, trial: Trial) -> None:
        self._engine.background.spawn(self._tell(trial), "postroad flows that were tried")

    async def _tell(self, trial: Trial) -> None:
        for head in trial.heads:
            await self._engine.background.wait_for_room(LOADING_MAX)
            self._engine.tell(head.id, Survived())
