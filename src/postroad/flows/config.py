"""Limits and times of flows."""

from __future__ import annotations

import msgspec

from postroad.core import RetryPolicy
from postroad.core.limits import MIB
from postroad.durable.config import check_positive


class FlowsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and times of the flows of a node. The defaults suit most."""

    loaded_flows_max: int = 10_000
    """Flows kept in memory; others are loaded when something happens to them."""
    max_attempts: int = 10
    """Attempts without progress, the first one included, after errors that may pass; then a flow
    is parked."""
    retry_initial_delay_s: float = 0.5
    """Delay before the second attempt; it doubles, with jitter."""
    retry_max_delay_s: float = 120.0
    """Longest such delay."""
    crash_recoveries_max: int = 5
    """Crashes of the process without progress of a flow; then it is retried apart from others."""
    trial_s: float = 1.0
    """Duration of the first such trial; a flow that crashes the process in each is parked."""
    session_buffer_max: int = 10_000
    """Messages of a session that its flow has not received; beyond that the session fails."""
    signal_buffer_max: int = 10_000
    """Signals that a flow has not waited for; beyond that `signal` raises."""
    signal_buffer_bytes_max: int = 64 * MIB
    """Size of these signals."""
    history_steps_max: int = 100_000
    """Steps of a flow since it last continued as new; beyond that it is parked."""
    history_bytes_max: int = 256 * MIB
    """Size of the results of these steps."""
    step_threads: int = 32
    """Threads for steps that are plain `def` functions."""
    retention_s: float = 24 * 3600.0
    """How long flows that have ended are stored."""
    client_id_retention_s: float = 30 * 24 * 3600.0
    """The same with a client id that was not generated."""
    replay_every_time: bool = False
    """For tests: replay the code of a flow after each wait."""

    def __post_init__(self) -> None:
        numbers = msgspec.structs.asdict(self)
        del numbers["replay_every_time"]
        check_positive(msgspec.defstruct("Numbers", [*numbers])(**numbers))

    @property
    def retry(self) -> RetryPolicy:
        """The retry policy of flows after transient errors."""
        return RetryPolicy(
            max_attempts=self.max_attempts,
            initial_delay_s=self.retry_initial_delay_s,
            max_delay_s=self.retry_max_delay_s,
        )
