"""What a roster believes of one process: rank, suspicion, goodbye, properties, tombstones."""

import pytest

from postroad.cluster.membership import ChangeKind, MembershipConfig, Record, State
from postroad.cluster.membership.roster import LEAP_MAX, Roster, Verdict
from tests.support.cluster.membership import INCARNATION, address_of, make_record, make_roster

CONFIG = MembershipConfig()
NOW = 100.0


def merge(roster: Roster, *records: Record, now: float = NOW) -> Verdict:
    """Merge all; the verdict on the last."""
    return [roster.merge(record, now) for record in records][-1]


def take_kinds(roster: Roster) -> list[ChangeKind]:
    kinds = [change.kind for change in roster.changes]
    roster.changes.clear()
    return kinds


def take_news(roster: Roster) -> list[Record]:
    """What the roster wants to be passed on, once."""
    return roster._rumours.take(1_000_000, times_max=1, full_bytes_max=1_000_000)


def make_crowd(*records: Record) -> Roster:
    roster = make_roster()
    merge(roster, *records)
    take_kinds(roster)
    take_news(roster)
    return roster


@pytest.mark.parametrize("state", State)
def test_a_stranger_is_news_and_added_if_it_is_active(state: State) -> None:
    roster = make_roster()
    record = make_record("b", state, witness="c")
    assert merge(roster, record) is Verdict.NEWS
    assert roster.entries["b"].record == record
    assert take_news(roster) == [record]
    added = [ChangeKind.ADDED] if state.is_active else []
    assert take_kinds(roster) == added
    assert ("b" in roster.active) is state.is_active
    assert ("b" in roster.suspects) is (state is State.SUSPECT)
    assert roster.names_at(address_of("b")) == (["b"] if state.is_active else [])
    assert roster.size == 1 + len(added)
    assert roster.revision == len(added)


def test_a_stranger_that_is_suspected_is_given_time_and_cannot_leave_without_its_secret() -> None:
    roster = make_roster()
    merge(roster, make_record("b", State.SUSPECT, witness="c"))
    assert roster.deadline() == NOW + CONFIG.failure_timeout_s
    roster.bury_silent(roster.deadline() - 0.01)
    assert "b" in roster.active
    roster.bury_silent(roster.deadline())
    assert roster.entries["b"].state is State.DEAD

    roster = make_roster()
    assert merge(roster, make_record("b", State.LEFT, secret=b"guess")) is Verdict.FORGED
    assert roster.entries == {}


@pytest.mark.parametrize("state", [State.ALIVE, State.SUSPECT, State.DEAD])
def test_the_same_or_an_older_incarnation_is_stale(state: State) -> None:
    record = make_record("b", state, witness="c")
    roster = make_crowd(record)
    assert merge(roster, record) is Verdict.STALE
    assert take_kinds(roster) == []
    assert take_news(roster) == []

    roster = make_crowd(make_record("b"))
    older = make_record("b", state, incarnation=INCARNATION - 1, witness="c")
    assert merge(roster, older) is Verdict.STALE
    assert roster.entries["b"].record == make_record("b")


def test_a_suspected_or_dead_member_that_speaks_up_is_alive_again() -> None:
    roster = make_crowd(make_record("b", State.SUSPECT, witness="c"))
    alive = make_record("b", incarnation=INCARNATION + 1)
    assert merge(roster, make_record("b")) is Verdict.STALE
    assert merge(roster, alive) is Verdict.NEWS
    assert take_kinds(roster) == [ChangeKind.REACHABILITY]
    assert take_news(roster) == [alive]
    assert roster.suspects == {}
    assert roster.deadline() == float("inf")

    roster = make_crowd(make_record("b", State.DEAD))
    assert merge(roster, make_record("b")) is Verdict.STALE
    assert merge(roster, make_record("b", incarnation=INCARNATION + 1)) is Verdict.NEWS
    assert take_kinds(roster) == [ChangeKind.ADDED]
    assert roster.names_at(address_of("b")) == ["b"]


def test_an_incarnation_out_of_range_is_refused() -> None:
    roster = make_crowd(make_record("b"))
    highest = INCARNATION + LEAP_MAX
    for name in ("b", "stranger"):
        leap = make_record(name, State.DEAD, incarnation=highest + 1)
        assert merge(roster, leap) is Verdict.LEAPED
    assert take_kinds(roster) == []
    assert merge(roster, make_record("b", incarnation=highest)) is Verdict.NEWS

    refusals = [verdict for verdict in Verdict if verdict.is_refusal]
    assert refusals == [Verdict.LEAPED, Verdict.FORGED, Verdict.CROWDED]

    roster = make_crowd(make_record("b"))
    moved = make_record("b", incarnation=INCARNATION + 1, address=address_of("evil"))
    merge(roster, moved)
    assert roster.entries["b"].record.address == address_of("b")
    assert roster.names_at(address_of("evil")) == []


def test_what_a_member_says_itself_needs_no_proof() -> None:
    roster = make_crowd(make_record("b", State.SUSPECT, witness="c"))
    entry = roster.entries["b"]
    roster.hear_itself(entry, INCARNATION, NOW)
    assert entry.state is State.SUSPECT, "that is what was suspected"
    roster.hear_itself(entry, INCARNATION + 9 * LEAP_MAX, NOW)
    assert (entry.state, entry.record.incarnation) == (State.ALIVE, INCARNATION + 9 * LEAP_MAX)
    roster.hear_itself(entry, 1 << 63, NOW)
    assert entry.record.incarnation == INCARNATION + 9 * LEAP_MAX


def test_a_failed_probe_makes_suspected_unless_it_is_of_an_earlier_incarnation() -> None:
    roster = make_crowd(make_record("b"))
    assert roster.suspect("b", INCARNATION, since=NOW - 2)
    assert roster.entries["b"].record.witness == "self"
    assert take_kinds(roster) == [ChangeKind.REACHABILITY]
    assert take_news(roster) == [make_record("b", State.SUSPECT, witness="self")]
    assert roster.deadline() == NOW - 2 + CONFIG.failure_timeout_s

    roster = make_crowd(make_record("b", incarnation=INCARNATION + 1))
    assert not roster.suspect("b", INCARNATION, since=NOW)
    assert not roster.suspect("stranger", INCARNATION, since=NOW)
    assert roster.suspects == {}


def test_other_witnesses_shorten_the_time_and_are_told_on() -> None:
    strangers = [make_record(name) for name in "cdefg"]
    roster = make_crowd(make_record("b"), *strangers)
    roster.suspect("b", INCARNATION, since=NOW)
    deadlines = [roster.deadline()]
    take_news(roster)
    for witness in ("c", "d", "e"):
        accusation = make_record("b", State.SUSPECT, witness=witness)
        assert merge(roster, accusation) is Verdict.NEWS
        assert take_news(roster) == [accusation]
        assert merge(roster, accusation) is Verdict.STALE
        deadlines.append(roster.deadline())
    assert deadlines == sorted(set(deadlines), reverse=True)
    assert deadlines[-1] == pytest.approx(NOW + CONFIG.confirmed_failure_timeout_s)
    assert merge(roster, make_record("b", State.SUSPECT, witness="f")) is Verdict.STALE


def test_accusations_confirm_a_suspicion_of_their_incarnation() -> None:
    roster = make_crowd(*(make_record(name) for name in "bcdef"))
    merge(roster, make_record("b", State.SUSPECT, witness="c"))
    before = roster.deadline()
    assert roster.suspect("b", INCARNATION, since=NOW)
    assert roster.deadline() < before
    assert not roster.suspect("b", INCARNATION, since=NOW), "once is enough"

    roster = make_crowd(*(make_record(name) for name in "bcdef"))
    merge(roster, make_record("b", State.SUSPECT, incarnation=INCARNATION + 1, witness="c"))
    assert merge(roster, make_record("b", State.SUSPECT, witness="d")) is Verdict.STALE
    assert roster.deadline() == NOW + CONFIG.failure_timeout_s

    roster = make_crowd(make_record("b", State.SUSPECT, witness="c"))
    later = make_record("b", State.SUSPECT, incarnation=INCARNATION + 1, witness="d")
    assert merge(roster, later, now=NOW + 5) is Verdict.NEWS
    assert roster.deadline() == NOW + 5 + CONFIG.failure_timeout_s
    assert take_kinds(roster) == []


def test_a_rumour_of_death_makes_suspected_and_hastens_but_never_removes() -> None:
    roster = make_crowd(make_record("b"))
    death = make_record("b", State.DEAD, witness="c")
    assert merge(roster, death) is Verdict.NEWS
    assert take_kinds(roster) == [ChangeKind.REACHABILITY]
    assert roster.deadline() == NOW + CONFIG.confirmed_failure_timeout_s
    assert take_news(roster) == [death], "told on as it was heard"
    assert merge(roster, death) is Verdict.STALE
    assert take_kinds(roster) == []

    roster = make_crowd(make_record("b", State.SUSPECT, witness="c"))
    assert merge(roster, make_record("b", State.DEAD, witness="d"), now=NOW + 1) is Verdict.NEWS
    assert roster.deadline() == NOW + CONFIG.confirmed_failure_timeout_s

    roster = make_crowd(make_record("b", State.SUSPECT, witness="c"))
    death = make_record("b", State.DEAD, incarnation=INCARNATION + 1, witness="d")
    assert merge(roster, death, now=NOW + 4) is Verdict.NEWS
    assert roster.deadline() == NOW + 4 + CONFIG.confirmed_failure_timeout_s


def test_a_suspect_that_does_not_speak_up_in_time_is_dead_and_that_is_told() -> None:
    roster = make_crowd(make_record("b", State.SUSPECT, witness="c"), make_record("d"))
    roster.postpone(7.0)
    assert roster.deadline() == NOW + CONFIG.failure_timeout_s + 7.0

    roster.bury_silent(NOW + CONFIG.failure_timeout_s)
    assert take_kinds(roster) == []
    roster.bury_silent(NOW + CONFIG.failure_timeout_s + 7.0)
    assert take_kinds(roster) == [ChangeKind.REMOVED]
    assert take_news(roster) == [make_record("b", State.DEAD, witness="self")]
    assert list(roster.active) == ["d"]


@pytest.mark.parametrize("before", [State.ALIVE, State.SUSPECT, State.DEAD])
def test_goodbye_with_the_secret_is_believed_at_any_incarnation(before: State) -> None:
    roster = make_crowd(make_record("b", before, incarnation=INCARNATION + 5, witness="c"))
    goodbye = make_record("b", State.LEFT)
    assert merge(roster, goodbye) is Verdict.NEWS
    assert roster.entries["b"].state is State.LEFT
    assert take_kinds(roster) == ([ChangeKind.REMOVED] if before.is_active else [])
    assert take_news(roster)[0].secret == goodbye.secret, "so that others believe it too"


def test_goodbye_is_final_and_needs_its_secret() -> None:
    roster = make_crowd(make_record("b", State.LEFT))
    for state in State:
        again = make_record("b", state, incarnation=INCARNATION + 9)
        assert merge(roster, again) is Verdict.STALE
    assert take_kinds(roster) == []
    assert take_news(roster) == []
    roster.change_own(make_record("self", incarnation=1 << 62))
    assert merge(roster, make_record("b", incarnation=(1 << 62) + 1)) is Verdict.STALE
    assert roster.entries["b"].state is State.LEFT

    roster = make_crowd(make_record("b"))
    assert merge(roster, make_record("b", State.LEFT, secret=b"guess")) is Verdict.FORGED
    assert take_kinds(roster) == []
    assert take_news(roster) == []
