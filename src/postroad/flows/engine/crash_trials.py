"""Tries flows apart from others that may be what ended the process; see `quarantine`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows.engine import tables
from postroad.flows.engine.background import LOADING_MAX, now_ms
from postroad.flows.machine.events import FlowTrialPassed
from postroad.flows.machine.failure_policy import (
    Trial,
    count_crash,
    defer_to_trial,
    is_convicted,
    needs_trial,
    park_convicted,
    plan_trials,
)
from postroad.flows.machine.state import FlowState, format_flow_id

if TYPE_CHECKING:
    from postroad.flows.engine.engine import FlowEngine

logger = logging.getLogger("postroad.flows")


class CrashTrials:
    """The trials of one start."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self._planned: list[Trial] = []
        self._convicted: list[FlowState] = []
        self._timers: list[asyncio.TimerHandle] = []

    def prepare(self, ledger: StoreTables) -> None:
        """Decide who goes on at once, who is tried when, and who is parked; in a commit."""
        config, database = self._engine.config, ledger.database
        was_killed = tables.mark_running(database)
        at_work, waiting = tables.read_suspicious(database)
        changed = {state.id: state for state in at_work} if was_killed else {}
        if was_killed:
            count_crash(at_work)
        self._convicted = [state for state in at_work if is_convicted(state)]
        for state in self._convicted:
            park_convicted(state, ledger.now_ms)
        suspects = [
            state for state in [*at_work, *waiting] if needs_trial(state, config.recoveries_max)
        ]
        trial_ms = max(round(config.trial_s * 1000), 1)
        self._planned = plan_trials(suspects, ledger.now_ms, trial_ms)
        for trial in self._planned:
            for state in trial.states:
                defer_to_trial(state, trial.starts_ms, ledger.now_ms)
        changed |= {state.id: state for state in suspects}
        for state in changed.values():
            tables.update_state(database, tables.state_row(state), with_arguments=False)

    def start(self) -> None:
        """Tell what was decided, and acquit those that are tried if the process goes on."""
        for state in self._convicted:
            assert state.failure is not None
            id = format_flow_id(state.id)
            logger.error(
                "flow %s of %s is parked: %s. `postroad flow retry %s` tries it once more",
                id, state.name, state.failure.detail, id,
            )  # fmt: skip
        if self._planned:
            logger.warning(
                "%d flows were at work whenever the process was killed, and came no further: they "
                "are tried again a few at a time, the last of them in %.1f s",
                sum(len(state.states) for state in self._planned),
                (self._planned[-1].starts_ms - now_ms()) / 1000,
            )  # fmt: skip
        loop = asyncio.get_running_loop()
        for trial in self._planned:
            after_s = max(trial.ends_ms - now_ms(), 0) / 1000
            self._timers.append(loop.call_later(after_s, self._on_trial_end, trial))

    def close(self) -> None:
        """Acquit nobody any more."""
        for timer in self._timers:
            timer.cancel()

    def _on_trial_end(self, trial: Trial) -> None:
        self._engine.background.spawn(self._release(trial), "postroad flows that were tried")

    async def _release(self, trial: Trial) -> None:
        for state in trial.states:
            await self._engine.background.wait_for_capacity(LOADING_MAX)
            self._engine.dispatch(state.id, FlowTrialPassed())
