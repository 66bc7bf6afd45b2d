"""Scenario `hostile`: it passes with many seeds, and finds bugs that are planted."""

from typing import Any

import pytest

from postroad.cluster.agent import SUBJECT, ClusterAgent
from postroad.cluster.membership import MemberRecord
from postroad.cluster.membership.candidates import GossipSource
from postroad.cluster.membership.gossip_handler import GossipHandler
from postroad.cluster.membership.member_table import MergeResult
from postroad.cluster.membership.name_conflicts import NameConflictResolver
from postroad.core.cluster_secret import ClusterSecret
from postroad.net import RawMessage
from postroad.wire import datagram
from tests.simulation.planting import CORRECTNESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("hostile", seeds)


@BUGS.replace(GossipHandler, "_apply_other", CORRECTNESS, 1)
def plant_belief_in_hearsay(
    hear: Any, self: GossipHandler, record: MemberRecord, now: float, source: GossipSource
) -> None:
    if self._member_table.merge(record, now) is MergeResult.UNPROVEN:
        self._member_table.admit(record, now)
    else:
        hear(self, record, now, source)


@BUGS.replace(NameConflictResolver, "_resolve_own_name", CORRECTNESS, 1)
def plant_trust_in_whoever_answers(
    rule: Any, self: NameConflictResolver, *args: Any, **more: Any
) -> Any:
    return rule(self, *args, **{**more, "is_vouched": True})


@BUGS.replace(ClusterAgent, "_on_datagram", CORRECTNESS, 1)
def plant_answers_to_who_is_named(_: Any, self: ClusterAgent, message: RawMessage) -> None:
    answer = self._receive(message.payload, message.sender)
    if answer is not None:
        self._transport.send_datagram(message.sender, SUBJECT, answer)
    self._process_outputs()


@BUGS.replace(datagram._ReplayWindow, "accept", CORRECTNESS, 2)
def plant_numbers_that_come_twice(_: Any, self: datagram._ReplayWindow, number: int) -> bool:
    return True


@BUGS.replace(ClusterSecret, "verify", CORRECTNESS, 2)
def plant_any_secret_will_do(
    _: Any, self: ClusterSecret, proof: bytes, purpose: bytes, *parts: bytes
) -> bool:
    return True


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("hostile", monkeypatch)
