"""Former names of settings, which files, variables and flags may still use."""

from __future__ import annotations

from postroad.durable.config import FORMER_NAMES

# Former name -> name, of sections and settings; applied in this order.
_RENAMED: dict[str, str] = {
    "mail": "queues",
    "cells.tuning.announcing": "cells.tuning.advertiser",
    "cells.tuning.forget_core_s": "cells.tuning.core_expiry_s",
    "cells.tuning.learning": "cells.tuning.route_learner",
    "cells.tuning.redial_first_s": "cells.tuning.redial_initial_delay_s",
    "cells.tuning.redial_max_s": "cells.tuning.redial_max_delay_s",
    "cluster.contacts": "cluster.seeds",
    "cluster.tuning.confirmations": "cluster.tuning.suspicion_confirmations",
    "cluster.tuning.health_max": "cluster.tuning.local_health_max",
    "cluster.tuning.indirect_after_s": "cluster.tuning.indirect_probe_delay_s",
    "cluster.tuning.tombstone_s": "cluster.tuning.tombstone_ttl_s",
    "flows.tuning.attempts_max": "flows.tuning.max_attempts",
    "flows.tuning.heard_max": "flows.tuning.session_buffer_max",
    "flows.tuning.keep_client_s": "flows.tuning.client_id_retention_s",
    "flows.tuning.keep_s": "flows.tuning.retention_s",
    "flows.tuning.recoveries_max": "flows.tuning.crash_recoveries_max",
    "flows.tuning.reload": "flows.tuning.replay_every_time",
    "flows.tuning.resident_max": "flows.tuning.loaded_flows_max",
    "flows.tuning.retry_first_s": "flows.tuning.retry_initial_delay_s",
    "flows.tuning.retry_max_s": "flows.tuning.retry_max_delay_s",
    "flows.tuning.signals_bytes_max": "flows.tuning.signal_buffer_bytes_max",
    "flows.tuning.signals_max": "flows.tuning.signal_buffer_max",
    "flows.tuning.threads": "flows.tuning.step_threads",
    "limits.accepted_max": "limits.accepted_connections_max",
    "limits.backoff_first_s": "limits.initial_backoff_s",
    "limits.backoff_max_s": "limits.max_backoff_s",
    "limits.idle_close_s": "limits.idle_timeout_s",
    "limits.lanes_per_peer_max": "limits.connections_per_peer_max",
    "tls.is_mutual": "tls.mutual",
    "tls.trust": "tls.ca",
    **{f"queues.tuning.{old}": f"queues.tuning.{new}" for old, new in FORMER_NAMES.items()},
}


def current_name(name: str) -> str:
    """Return the dotted name of a setting or section today."""
    for old, new in _RENAMED.items():
        if name == old or name.startswith(f"{old}."):
            name = new + name.removeprefix(old)
    return name


def former_names(name: str) -> list[str]:
    """Return all names that `current_name` turns into this one, without the name itself."""
    names = [name]
    for old, new in reversed(_RENAMED.items()):
        names += [
            old + each.removeprefix(new)
            for each in names
            if each == new or each.startswith(f"{new}.")
        ]
    return names[1:]
