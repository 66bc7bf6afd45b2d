"""What cores know of domains, compared."""

import pytest

from postroad.cells.routing.advertisements import (
    CoreReport,
    KnownAdvertisement,
    RouteCheckResult,
    compare_reports,
    decode_report,
)
from postroad.core.errors import MalformedPayloadError

OWN_1 = KnownAdvertisement(11, 0, b"c1")
OWN_2 = KnownAdvertisement(12, 0, b"c2")
C1 = KnownAdvertisement(11, 5, b"c1")
C2 = KnownAdvertisement(12, 7, b"c2")
S1 = KnownAdvertisement(21, 3, b"s1")


def compare(
    at_c1: dict[str, KnownAdvertisement], at_c2: dict[str, KnownAdvertisement]
) -> list[tuple[str, str, str]]:
    result = compare_reports({"C2": CoreReport(OWN_2, at_c2), "C1": CoreReport(OWN_1, at_c1)}, {})
    return [
        (difference.domain, difference.core, difference.problem)
        for difference in result.differences
    ]


def test_cores_that_agree_and_silence_is_not_agreement() -> None:
    reports = {
        "C1": CoreReport(OWN_1, {"C2": C2, "S1": S1}),
        "C2": CoreReport(OWN_2, {"C1": C1, "S1": S1}),
    }
    result = compare_reports(reports, {})
    assert result == RouteCheckResult(("C1", "C2"), {}, 3, ())
    assert result.is_consistent

    reports = {"C1": CoreReport(OWN_1, {"S1": S1})}
    result = compare_reports(reports, {"C3": "no reply", "C2": "no route"})
    assert not result.differences
    assert list(result.unreachable) == ["C2", "C3"]
    assert not result.is_consistent
    assert compare_reports(reports, {}).is_consistent
    assert not compare_reports({}, {}).is_consistent


def test_outdated_core_is_reported(subtests: pytest.Subtests) -> None:
    for advertisement, problem in [
        (KnownAdvertisement(21, 2, b"s1"), "has #2 of incarnation 21; C2 has #3 of incarnation 21"),
        (KnownAdvertisement(20, 9, b"s1"), "has #9 of incarnation 20; C2 has #3 of incarnation 21"),
        (KnownAdvertisement(), "has nothing; C2 has #3 of incarnation 21"),
    ]:
        with subtests.test(problem=problem):
            differences = compare({"C2": C2, "S1": advertisement}, {"C1": C1, "S1": S1})
            assert differences == [("S1", "C1", problem)]

    assert compare({"C2": C2, "S1": S1}, {"C1": C1}) == [("S1", "C2", "has no tunnel to it")]
    assert compare({"S1": S1}, {"C1": C1, "S1": S1}) == [("C2", "C1", "has no tunnel to it")]

    assert compare({"C2": C2}, {"C1": C1, "S1": KnownAdvertisement()}) == [
        ("S1", "C1", "has no tunnel to it"),
        ("S1", "C2", "has no advertisement of it"),
    ]

    differences = compare(
        {"C2": C2, "S1": KnownAdvertisement()}, {"C1": C1, "S1": KnownAdvertisement()}
    )
    assert differences == [("S1", core, "has no advertisement of it") for core in ("C1", "C2")]


def test_snapshot_with_other_contents_is_reported(subtests: pytest.Subtests) -> None:
    other = KnownAdvertisement(21, 3, b"other")
    differences = compare({"C2": C2, "S1": S1}, {"C1": C1, "S1": other})
    assert differences == [("S1", "C2", "has another #3 of incarnation 21 than C1")]

    for advertisement in [KnownAdvertisement(11, 5, b"old"), KnownAdvertisement(10, 5, b"c1")]:
        with subtests.test(known=advertisement):
            ((domain, core, problem),) = compare(
                {"C2": C2, "S1": S1}, {"C1": advertisement, "S1": S1}
            )
            assert (domain, core) == ("C1", "C2")
            assert problem == f"has {advertisement}, which is not what it advertises now"


def test_a_report_is_read_from_plain_values_or_malformed(subtests: pytest.Subtests) -> None:
    report = decode_report({"own": [11, 0, b"c1"], "known": {"S1": [21, 3, b"s1"]}})
    assert report == CoreReport(OWN_1, {"S1": S1})

    for answer in [
        None,
        "text",
        {},
        {"own": [1, 2, b""]},
        {"own": [1, 2, b""], "known": {"a@b": [1, 1, b""]}},
        {"own": [1, 2, b""], "known": {"S1": [-1, 1, b""]}},
        {"own": [1, 2, b"x" * 17], "known": {}},
        {"own": [1, 2, b""], "known": {str(n): [1, 1, b""] for n in range(65_537)}},
    ]:
        refusal = pytest.raises(MalformedPayloadError, match="malformed report of a core")
        with subtests.test(answer=answer), refusal:
            decode_report(answer)
