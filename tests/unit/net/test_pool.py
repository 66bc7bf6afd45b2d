"""Which subjects share a connection."""

import pytest

from postroad.net.pool import subject_class


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("", ""),
        ("ping", ""),
        ("bulk.upload", "bulk"),
        ("bulk.copy.now", "bulk"),
        ("bulk.", "bulk"),
        (".hidden", ""),
        (".", ""),
        ("käse.brot", "käse"),
        ("internal-heartbeat", ""),
    ],
)
def test_subject_class(subject: str, expected: str) -> None:
    assert subject_class(subject) == expected
