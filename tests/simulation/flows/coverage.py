"""What covers each scenario of `tests/support/flows/kill_scenarios.py` in the simulator.

All of them also happen by chance, one among others: `test_flows.test_seed` runs whole plans, and
`test_flows.test_planted_bug_is_found` shows for many of them that it would not be overlooked.
"""

from __future__ import annotations

from typing import NamedTuple

BEFORE, AFTER, REPORTED = "durable.commit.before", "durable.commit.after", "durable.commit.reported"
BEFORE_SEND, AFTER_SEND = "durable.bridge.before_send", "durable.bridge.after_send"
ACCEPTED, ACCEPTS = "durable.bridge.accepted", "durable.receiver.after_accept"
HANDLED, DURABLE = "flows.event.handled", "flows.commit.durable"
LOST, CLAIMED = "flows.commit.lost", "flows.recovery.claimed"
BEGINS, DONE = "flows.step.started", "flows.step.completed"
LETTER, TAKEN = "flows.session.received", "durable.consumer.dispatched"
TOLD, LOADED, COUNTED = "flows.result.resolved", "flows.loaded", "flows.recovery.counted"
DUE, BEGUN, REJECTED = "flows.schedule.due", "flows.schedule.started", "flows.session.rejected"

COURSE = "verdict._check_course"
"""Each order ended as the model says, and each step of a transaction was done once."""
ONCE = "findings.Findings"
"""No order has two flows, no step two rows, and no flow is there that nobody began."""
QUIET = "verdict.await_quiet"
"""Everything has come to an end: flows, letters, what was said and not read."""
STAYS = "verdict.check_stays_quiet"
"""What has ended stays as it is when every process is started again."""
MEMORY = "verdict.check_memory"
"""What a process has in memory is what is in its store."""
REPLAY = "verdict.check_ended"
"""The code comes to the same end when it is run again from the record."""
GOES_ON = "verdict.check_unfinished"
"""Flows in flight fit their records whenever somebody looks."""
TOLD_SAME = "clerks.Books"
"""What clients were told does not change."""
HARM = "verdict._check_disturbed"
"""Where an operator killed a flow, nothing is done twice, and no money is lost unseen."""


class Cover(NamedTuple):
    """What covers one scenario.

    Attributes:
        points: where `test_flows_faults.test_killed_at` kills all banks.
        checks: what would find that it went wrong; modules of `tests.simulation.flows`.
        tests: more of them that are about it, in modules of `tests.simulation`.
    """

    points: tuple[str, ...]
    checks: tuple[str, ...]
    tests: tuple[str, ...] = ()


COVERAGE: dict[str, Cover] = {
    "S1": Cover((DONE, BEFORE), (COURSE, ONCE), ("test_flows.plant_rows_apart_from_step",)),
    "S2": Cover((AFTER, DURABLE), (COURSE, REPLAY), ("test_flows.plant_letters_before_commit",)),
    "S3": Cover(
        (AFTER, REPORTED),
        (COURSE, QUIET, MEMORY),
        (
            "test_flows.plant_forgotten_receipts",
            "test_flows.plant_commits_overtaken_by_a_step",
        ),
    ),
    "S4": Cover((BEFORE_SEND,), (COURSE, QUIET)),
    "S5": Cover((BEFORE_SEND, AFTER_SEND), (COURSE, QUIET)),
    "S6": Cover((AFTER_SEND, ACCEPTED), (COURSE, ONCE)),
    "S7": Cover((HANDLED, AFTER), (COURSE, QUIET)),
    "S8": Cover((BEFORE,), (COURSE, REPLAY)),
    "S9": Cover((AFTER, BEFORE_SEND), (COURSE, QUIET)),
    "S11": Cover((AFTER_SEND, DONE), (COURSE, QUIET)),
    "R1": Cover((AFTER, ACCEPTS), (COURSE, ONCE)),
    "R2": Cover((TAKEN, LETTER), (COURSE, QUIET)),
    "R3": Cover((HANDLED, BEFORE), (COURSE, ONCE)),
    "R4": Cover((AFTER,), (COURSE, ONCE), ("test_flows.plant_forgotten_receipts",)),
    "R5": Cover((REPORTED, BEFORE_SEND), (COURSE, QUIET)),
    "R6": Cover((AFTER_SEND, DONE), (COURSE, REPLAY)),
    "R7": Cover(
        (BEFORE, AFTER, REPORTED), (COURSE, MEMORY), ("test_flows.plant_messages_in_memory",)
    ),
    "R8": Cover((AFTER_SEND,), (COURSE, ONCE)),
    "R9": Cover(
        (REJECTED, BEFORE, AFTER),
        (COURSE, QUIET),
        (
            "test_flows.plant_rejections_apart_from_letters",
            "test_flows_found.test_a_session_that_was_kept_for_code_to_come_is_rejected_"
            "if_the_code_is_not_for_it",
        ),
    ),
    "R10": Cover((LETTER,), (QUIET, HARM), ("test_flows.plant_paused_flows_do_not_listen",)),
    "R11": Cover(
        (LETTER, AFTER),
        ("verdict.check_garbage",),
        (
            "test_flows.plant_garbage_in_silence",
            "test_flows_troubles.test_garbage",
            "test_flows_troubles.test_letter_by_somebody_who_has_no_part_in_the_session",
            "test_flows_troubles.test_peer_that_nobody_knows",
        ),
    ),
    "R13": Cover(
        (AFTER,),
        (COURSE, QUIET),
        (
            "test_flows_found.test_a_flow_that_was_held_begins_although_the_commit_of_that_fails",
            "test_flows_found.test_a_session_that_was_kept_for_code_to_come_is_rejected_"
            "if_the_code_is_not_for_it",
        ),
    ),
    "R14": Cover((AFTER,), (COURSE, QUIET)),
    "F1": Cover(
        (HANDLED, BEFORE, AFTER, REPORTED),
        (ONCE, TOLD_SAME),
        ("test_flows.plant_begun_before_commit",),
    ),
    "F2": Cover((TOLD,), (TOLD_SAME, STAYS), ("test_flows.plant_result_before_commit",)),
    "F3": Cover((DONE,), (COURSE, REPLAY)),
    "F4": Cover((REPORTED, HANDLED), (QUIET,), ("test_flows.plant_alarm_that_is_not_set",)),
    "F5": Cover((HANDLED, BEFORE, AFTER), (COURSE, MEMORY), ("test_flows.plant_exception",)),
    "F6": Cover(
        (BEFORE, AFTER, BEFORE_SEND),
        (COURSE, REPLAY),
        ("test_flows.plant_failures_that_nobody_is_told",),
    ),
    "F7": Cover((BEFORE, AFTER, BEFORE_SEND), (COURSE, QUIET)),
    "F8": Cover((LOADED, HANDLED), (COURSE, MEMORY)),
    "F9": Cover((HANDLED, BEFORE, AFTER), (HARM, STAYS)),
    "F10": Cover((AFTER,), (COURSE, MEMORY), ("test_flows.plant_paused_flows_do_not_listen",)),
    "F11": Cover(
        (AFTER,),
        (QUIET, "operators.check_parked"),
        (
            "test_flows_found.test_a_flow_that_an_operator_tries_again_is_not_parked_when_it_is_"
            "read_again",
        ),
    ),
    "F12": Cover((BEGINS, DONE, AFTER), (COURSE, REPLAY)),
    "F13": Cover((AFTER,), (GOES_ON, REPLAY), ("test_flows_troubles.test_changed_code",)),
    "F14": Cover(
        (HANDLED, DURABLE),
        (COURSE, QUIET),
        (
            "test_flows_faults.test_stopped_at",
            "test_flows_found.test_a_process_that_ends_while_it_waits_for_a_flow_leaves_nothing_"
            "behind",
        ),
    ),
    "F15": Cover(
        (BEFORE, LOST),
        (QUIET, MEMORY),
        (
            "test_flows_troubles.test_disk_that_takes_nothing",
            "test_flows.plant_commits_that_fail_unheard",
        ),
    ),
    "F16": Cover(
        (DUE, BEGUN),
        ("verdict.check_schedules", ONCE),
        (
            "test_flows.plant_schedules_apart_from_flows",
            "test_flows_troubles.test_clock_that_is_set_back",
            "test_flows_troubles.test_clock_that_is_set_forward",
        ),
    ),
    "P1": Cover((BEGINS, DONE), (COURSE, REPLAY), ("test_flows.plant_steps_that_are_not_resumed",)),
    "P2": Cover((AFTER, DURABLE), (COURSE, REPLAY), ("test_flows.plant_records_that_are_skipped",)),
    "P3": Cover(
        (DONE, AFTER),
        (COURSE, REPLAY),
        ("test_flows_found.test_a_step_that_ends_while_its_flow_is_read_again_is_not_run_twice",),
    ),
    "P4": Cover((BEFORE, AFTER, HANDLED), (COURSE, REPLAY, GOES_ON)),
    "P5": Cover(
        (CLAIMED, COUNTED),
        (COURSE, QUIET),
        (
            "test_flows_troubles.test_two_processes_with_one_store",
            "test_flows_troubles.test_process_that_takes_over",
        ),
    ),
    "P6": Cover((COUNTED, LOADED), (QUIET,), ("test_flows_troubles.test_disk_that_takes_nothing",)),
    "P7": Cover((AFTER,), (GOES_ON, REPLAY), ("test_flows_troubles.test_changed_code",)),
    "P8": Cover(
        (DONE, AFTER),
        ("operators.check_parked", COURSE),
        ("test_flows_troubles.test_result_that_cannot_be_written_down",),
    ),
    "P9": Cover((BEFORE, AFTER, HANDLED), (COURSE, REPLAY)),
    "P10": Cover(
        (HANDLED, DUE),
        ("bank._check_time", "verdict.check_schedules", ONCE),
        (
            "test_flows.plant_time_that_goes_back",
            "test_flows_troubles.test_clock_that_is_set_back",
            "test_flows_troubles.test_clock_that_is_set_forward",
        ),
    ),
}
"""By the id of a scenario."""
