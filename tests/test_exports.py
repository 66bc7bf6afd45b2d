"""The public surface: what `from postroad import ...` promises."""

from importlib.metadata import version

import postroad

PUBLIC = [
    "Address",
    "Limits",
    "Message",
    "MessagingService",
    "Outcome",
    "PostroadError",
    "Protocol",
    "Statistics",
    "TlsConfig",
    "Unicast",
    "__version__",
    "errors",
    "run",
]


def test_public_names_are_fixed() -> None:
    assert sorted(postroad.__all__) == PUBLIC


def test_public_names_exist() -> None:
    assert [name for name in PUBLIC if not hasattr(postroad, name)] == []


def test_version_is_the_one_that_was_built() -> None:
    assert postroad.__version__ == version("postroad")
