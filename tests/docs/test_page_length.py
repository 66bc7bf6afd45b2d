"""Pages that people read from top to bottom stay short."""

import pytest

from tests.docs.pages import ROOT

WORDS_MAX = 3_000
PAGES = (
    *("tutorial", "how-to", "node", "queues", "scaling", "saga", "sync", "web", "within"),
    *(
        "flows",
        "flows-reference",
        "flows-code",
        "flows-operations",
        "flows-internals",
        "flow-changes",
    ),
    *("from-celery", "from-dbos", "from-temporal"),
)


@pytest.mark.parametrize("page", PAGES)
def test_page_is_short_enough_to_read(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert len(text.split()) <= WORDS_MAX
