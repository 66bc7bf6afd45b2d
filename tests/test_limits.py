"""Every limit that can be set has a test that proves it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT, package_files, syntax_tree

Proof = tuple[str, str]
"""A file below tests, and a test in it."""

PROOFS = {
    "AdminSettings.body_bytes_max": (
        "integration/admin/test_api_bounds.py",
        "test_a_body_of_100_megabytes",
    ),
    "AdminSettings.clients_max": (
        "integration/admin/test_api_bounds.py",
        "test_connections_above_the_limit_close_the_longest_idle_one",
    ),
    "BrokerConfig.events_max": (
        "integration/services/test_broker_events.py",
        "test_more_events_than_can_be_handled_are_dropped",
    ),
    "BrokerConfig.max_call_level": (
        "integration/services/test_broker_calls.py",
        "test_calls_within_calls_have_a_limit",
    ),
    "BrokerConfig.pending_max": (
        "integration/services/test_event_acks.py",
        "test_too_many_that_wait",
    ),
    "BrokerConfig.serving_max": (
        "integration/services/test_broker_bad_input.py",
        "test_a_flood_of_requests_is_refused",
    ),
    "BrokerConfig.stream_bytes_max": (
        "integration/services/test_stream_packets.py",
        "test_a_sender_that_cannot_be_slowed_down_overflows",
    ),
    "BrokerConfig.streams_bytes_max": (
        "integration/services/test_stream_packets.py",
        "test_all_streams_together_overflow",
    ),
    "BrokerConfig.streams_max": (
        "integration/services/test_streams.py",
        "test_too_many_streams",
    ),
    "BulkheadConfig.queue_max": (
        "unit/services/test_bulkheads.py",
        "test_bulkhead_runs_queues_or_refuses",
    ),
    "CellsConfig.link_bytes_max": (
        "integration/cells/delivery/test_silent_peers.py",
        "test_a_slow_reader_holds_little_memory_and_nobody_else",
    ),
    "CellsConfig.link_messages_max": (
        "integration/cells/routing/test_partial_mesh.py",
        "test_when_a_tunnel_is_full_the_next_one_takes_more",
    ),
    "CellsConfig.mailbox_bytes_max": (
        "unit/cells/delivery/test_cell_runner.py",
        "test_bytes_that_wait_are_bounded_and_publications_lost_are_counted",
    ),
    "CellsConfig.mailbox_messages_max": (
        "integration/cells/delivery/test_bad_peers.py",
        "test_a_flood_is_refused_and_others_get_in",
    ),
    "CellsConfig.resend_bytes_max": (
        "unit/cells/delivery/test_requests_resend_buffer.py",
        "test_the_oldest_are_forgotten_by_number_and_by_bytes",
    ),
    "CellsConfig.resend_messages_max": (
        "unit/cells/delivery/test_requests_resend_buffer.py",
        "test_the_oldest_are_forgotten_by_number_and_by_bytes",
    ),
    "FlowLimits.max_attempts": (
        "integration/flows/test_troubles.py",
        "test_after_so_many_attempts_an_operator_must_look",
    ),
    "FlowLimits.max_bytes": (
        "integration/flows/test_growth.py",
        "test_a_flow_that_does_too_much_is_parked_until_more_is_allowed",
    ),
    "FlowLimits.max_steps": (
        "integration/flows/test_growth.py",
        "test_a_flow_that_does_too_much_is_parked_until_more_is_allowed",
    ),
    "FlowsConfig.max_attempts": (
        "integration/flows/test_troubles.py",
        "test_after_so_many_attempts_an_operator_must_look",
    ),
    "FlowsConfig.session_buffer_max": (
        "integration/flows/test_hard_times.py",
        "test_a_flood_of_messages_fails_the_session_and_not_the_node",
    ),
    "FlowsConfig.history_bytes_max": (
        "integration/flows/test_growth.py",
        "test_a_flow_that_does_too_much_is_parked_until_more_is_allowed",
    ),
    "FlowsConfig.history_steps_max": (
        "integration/flows/test_growth.py",
        "test_a_flow_that_does_too_much_is_parked_until_more_is_allowed",
    ),
    "FlowsConfig.crash_recoveries_max": (
        "integration/flows/test_troubles.py",
        "test_a_flow_that_comes_no_further_is_not_taken_up_for_ever",
    ),
    "FlowsConfig.loaded_flows_max": (
        "integration/flows/test_life.py",
        "test_few_in_memory_and_many_at_work",
    ),
    "FlowsConfig.signal_buffer_bytes_max": (
        "integration/flows/test_growth.py",
        "test_unread_signals_beyond_size_limit_are_rejected",
    ),
    "FlowsConfig.signal_buffer_max": (
        "integration/flows/test_hard_times.py",
        "test_unread_signals_beyond_limit_are_rejected",
    ),
    "Limits.accepted_connections_max": (
        "integration/net/test_pool.py",
        "test_accepted_connections_max",
    ),
    "Limits.connections_max": (
        "integration/net/test_pool.py",
        "test_the_cap_closes_the_connection_unused_for_longest",
    ),
    "Limits.frame_bytes_max": (
        "integration/net/test_error_replies.py",
        "test_message_too_large_is_not_sent",
    ),
    "Limits.handlers_running_max": (
        "integration/net/test_backpressure.py",
        "test_slow_consumer_pauses_reading_at_the_limit",
    ),
    "Limits.connections_per_peer_max": (
        "integration/net/test_overload.py",
        "test_classes_beyond_the_limit_share_one_connection",
    ),
    "Limits.requests_pending_max": (
        "integration/net/test_backpressure.py",
        "test_pending_requests_are_limited_by_the_peers_window",
    ),
    "Limits.unfinished_bytes_max": (
        "integration/net/test_unfinished_frames.py",
        "test_frames_that_never_end_take_no_more_than_the_limit",
    ),
    "Limits.write_buffer_bytes_max": (
        "integration/net/test_backpressure.py",
        "test_sender_waits_for_a_peer_that_does_not_read",
    ),
    "DurableQueuesConfig.inbox_bytes_max": (
        "integration/durable/test_quotas.py",
        "test_full_inbox_pushes_back_and_loses_nothing",
    ),
    "DurableQueuesConfig.message_bytes_max": (
        "integration/durable/test_posting.py",
        "test_oversized_message_is_refused_at_once",
    ),
    "DurableQueuesConfig.outbox_messages_max": (
        "integration/durable/test_quotas.py",
        "test_full_outbox_rejects_sends",
    ),
    "DurableQueuesConfig.batch_bytes_max": (
        "contract/store_outbox_behaviour.py",
        "test_letters_are_kept_in_pages",
    ),
    "DurableQueuesConfig.batch_messages_max": (
        "contract/store_outbox_behaviour.py",
        "test_letters_are_kept_in_pages",
    ),
    "DurableQueuesConfig.queues_max": (
        "contract/store_inbox_behaviour.py",
        "test_no_more_queues_than_allowed_are_opened",
    ),
    "DurableQueuesConfig.sender_dead_bytes_max": (
        "integration/durable/test_quotas.py",
        "test_sender_over_dead_letter_quota_keeps_its_messages",
    ),
    "DurableQueuesConfig.sender_bytes_max": (
        "integration/durable/test_quotas.py",
        "test_sender_at_its_quota_does_not_block_others",
    ),
    "DurableQueuesConfig.uncommitted_acks_max": (
        "integration/durable/test_uncommitted.py",
        "test_consumer_with_too_much_uncommitted_handles_nothing_more",
    ),
    "DurableQueuesConfig.write_queue_bytes_max": (
        "unit/durable/test_producer_batches.py",
        "test_batched_sends_count_as_queued_bytes",
    ),
    "DurableQueuesConfig.windows_max": (
        "integration/durable/test_posting.py",
        "test_long_row_of_windows_is_delivered_when_the_peer_is_found",
    ),
    "MembershipConfig.local_health_max": (
        "unit/cluster/membership/test_suspicion.py",
        "test_health_score_rises_to_the_maximum_and_falls_by_one",
    ),
    "MembershipConfig.members_max": (
        "unit/cluster/membership/test_membership_input.py",
        "test_flood_of_unknown_nodes_is_rejected_and_evicts_no_member",
    ),
    "MembershipConfig.packet_bytes_max": (
        "unit/cluster/membership/test_state_sync.py",
        "test_state_too_large_for_a_packet_is_sent_in_random_parts",
    ),
    "MembershipConfig.properties_bytes_max": (
        "integration/cells/core_discovery/test_membership.py",
        "test_properties_that_have_no_room_for_a_core_are_refused",
    ),
    "MembershipConfig.stream_bytes_max": (
        "unit/cluster/membership/test_state_sync.py",
        "test_state_too_large_for_a_packet_is_sent_in_random_parts",
    ),
    "RegistryConfig.nodes_max": (
        "unit/services/test_registry.py",
        "test_new_node_connects_until_there_are_too_many",
    ),
    "RegistryConfig.unproven_max": (
        "unit/services/test_doubts.py",
        "test_nodes_that_never_answered_keep_nobody_out",
    ),
    "Task.max_pending": (
        "unit/pipeline/test_desk.py",
        "test_no_more_is_pending_than_may_be",
    ),
}
# Times and attempts, not numbers of things that are kept.
TIMES = {
    "Limits.max_backoff_s",
    "RetryPolicy.max_attempts",
    "RetryPolicy.max_delay_s",
    "RetryPolicy.max_s",
}
# What a peer says of itself, and what is spoken at most.
FOREIGN = {"ServerInfo.max_payload", "ProtocolConfig.version_max"}


@cache
def limits() -> set[str]:
    """The fields of settings that are a maximum and have a default."""
    return {
        f"{settings.name}.{field.target.id}"
        for path in package_files()
        for settings in ast.walk(syntax_tree(path))
        if isinstance(settings, ast.ClassDef)
        and any("Struct" in ast.unparse(base) for base in settings.bases)
        for field in settings.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and field.value is not None
        and (field.target.id.endswith("_max") or field.target.id.startswith("max_"))
    }


@pytest.mark.slow
def test_every_limit_is_in_the_table() -> None:
    assert limits() - TIMES - FOREIGN == PROOFS.keys()


def test_every_test_of_the_table_exists() -> None:
    missing = [
        (limit, file, test) for limit, (file, test) in PROOFS.items() if test not in names_in(file)
    ]
    assert not missing


def names_in(file: str) -> set[str]:
    path = ROOT / "tests" / Path(file)
    if not path.exists():
        return set()
    nodes = ast.walk(syntax_tree(path))
    return {it.name for it in nodes if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)}
