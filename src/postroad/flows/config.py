"""All sizes and times of flows, each with its reason."""

from __future__ import annotations

import msgspec

from postroad.core import RetryPolicy
from postroad.core.limits import MIB
from postroad.durable.config import check_positive


class FlowsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and times of one node's flows. The defaults suit most."""

    resident_max: int = 10_000
    """Flows kept in memory; others are read again when something happens to them."""
    attempts_max: int = 10
    """How often a flow is tried again after errors that may pass; then it is parked."""
    retry_first_s: float = 0.5
    """Pause before the first such attempt; it doubles, with jitter."""
    retry_max_s: float = 120.0
    """Longest such pause."""
    recoveries_max: int = 5
    """How often the process may end while a flow comes no further; then it is tried apart."""
    trial_s: float = 1.0
    """Seconds for which it is, to begin with; it is parked if the process ends again and again."""
    heard_max: int = 10_000
    """Messages of a session that may wait for the code to receive them; then it fails."""
    signals_max: int = 10_000
    """Signals that may wait for the code of a flow to ask for them; then `signal` raises."""
    signals_bytes_max: int = 64 * MIB
    """The same for the size of all of them."""
    history_steps_max: int = 100_000
    """Steps of a flow since it began anew; beyond that it is parked. Each is read at a restart."""
    history_bytes_max: int = 256 * MIB
    """The same for the size of what these steps were given."""
    threads: int = 32
    """Functions of steps that may block at the same time."""
    keep_s: float = 24 * 3600.0
    """How long flows that have ended are kept to look at."""
    keep_client_s: float = 30 * 24 * 3600.0
    """The same for those with a client id, whose result may be asked for again."""
    reload: bool = False
    """For tests: run the code of a flow anew whenever it has waited for something."""

    def __post_init__(self) -> None:
        numbers = msgspec.structs.asdict(self)
        del numbers["reload"]
        check_positive(msgspec.defstruct("Numbers", [*numbers])(**numbers))

    @property
    def retry(self) -> RetryPolicy:
        """How flows that ail are tried again."""
        return RetryPolicy(
            max_attempts=self.attempts_max,
            initial_delay_s=self.retry_first_s,
            max_delay_s=self.retry_max_s,
        )
