"""What `postroad events` and `postroad logs -f` tell of two looks."""

from typing import Any

from postroad.cli.checking import nagios_line, status_of
from postroad.cli.events import by_key, changes, unseen
from tests.support.cases import each


def test_changes_of_rows_are_told_by_their_names() -> None:
    assert [*by_key([{"id": "7", "name": "pay"}, {"peer": "beta", "id": None}])] == [
        "7/pay",
        "beta",
    ]
    before: dict[str, dict[str, Any]] = {"a": {"depth": 1, "oldest_s": 1.0}, "b": {"depth": 2}}
    after: dict[str, dict[str, Any]] = {"a": {"depth": 3, "oldest_s": 2.0}, "c": {"depth": 0}}
    assert [*changes("queue.ls", before, after)] == [
        {"noun": "queue", "key": "a", "what": "changed", "changed": {"depth": 3}},
        {"noun": "queue", "key": "b", "what": "gone", "changed": {}},
        {"noun": "queue", "key": "c", "what": "new", "changed": {"depth": 0}},
    ]
    assert [*changes("queue.ls", {"a": {"oldest_s": 1.0}}, {"a": {"oldest_s": 2.0}})] == []


@each(
    ([], [1, 2], [1, 2]),
    ([1, 2], [1, 2], []),
    ([1, 2], [2, 3], [3]),
    ([1, 2], [3, 4], [3, 4]),
    ([1, 1], [1, 1, 1], [1]),
    ([1, 2, 3], [], []),
)
def test_lines_that_follow(shown: list[Any], lines: list[Any], new: list[Any]) -> None:
    assert unseen(shown, lines) == new


def health(*statuses: str, is_ready: bool = True) -> dict[str, Any]:
    checks = [{"name": "mail", "status": it, "detail": "a|b\nc"} for it in statuses]
    return {"is_ready": is_ready, "reasons": [] if is_ready else ["it drains"], "checks": checks}


@each(
    (health("ok", "ok"), "ok"),
    (health("ok", "warning"), "warning"),
    (health("warning", "failing"), "failing"),
    (health("ok", is_ready=False), "failing"),
)
def test_worst_counts(told: dict[str, Any], status: str) -> None:
    assert status_of(told) == status


def test_line_for_nagios() -> None:
    overview = {"node": {"name": "alpha"}, "members": 2, "waiting": 5, "dead": 0}
    assert nagios_line("ok", health("ok"), overview) == (
        "POSTROAD OK - node alpha is ready | members=2 waiting=5 dead=0"
    )
    assert nagios_line("failing", health("failing", is_ready=False), overview) == (
        "POSTROAD CRITICAL - it drains; mail: a/b c | members=2 waiting=5 dead=0"
    )
