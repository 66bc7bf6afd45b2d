"""Which subjects share a connection."""

from postroad.net.connections.pool import subject_class


def test_subject_class() -> None:
    for subject, expected in [
        ("", ""),
        ("ping", ""),
        ("bulk.upload", "bulk"),
        ("bulk.copy.now", "bulk"),
        ("bulk.", "bulk"),
        (".hidden", ""),
        (".", ""),
        ("käse.brot", "käse"),
        ("internal-heartbeat", ""),
    ]:
        assert subject_class(subject) == expected, subject
