"""Every Python example in the README and the documentation runs as it stands."""

import asyncio
from pathlib import Path

import pytest

from tests.docs.pages import printed, programs
from tests.support.tiers import TIER, Tier
from tests.support.warm_parent import spawn

LIMIT_S = 120

PROGRAMS = programs()
FLOWS = (
    "flows",
    "flows-reference",
    "flows-code",
    "flows-operations",
    "flows-internals",
    "flow-changes",
)
GUIDES = (
    "durable",
    "queues",
    "scaling",
    "saga",
    "web",
    "within",
    "from-celery",
    "from-dbos",
    "from-temporal",
)
PAGES_THAT_PRINT = ("services", *FLOWS, *GUIDES, "node", "README", "tracing")
PRINTED = {name: text for page in PAGES_THAT_PRINT for name, text in printed(page).items()}


@pytest.mark.parametrize(
    "page", ["README", "messaging", "membership", "discovery", "services", "flows"]
)
def test_examples_are_found(page: str) -> None:
    assert any(name.startswith(page) for name in PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
async def test_example_runs(name: str, tmp_path: Path) -> None:
    program, errors = tmp_path / f"{name}.py", tmp_path / "errors.txt"
    program.write_text(PROGRAMS[name])
    runner = "tests.support.strict_program"
    is_cold = TIER is Tier.NIGHTLY
    process = await spawn(runner, program, errors, cwd=tmp_path, is_cold=is_cold)
    try:
        stdout = (await asyncio.wait_for(process.stdout.read(), LIMIT_S)).decode()
        status = await asyncio.wait_for(process.wait(), LIMIT_S)
    finally:
        process.kill()
        process.close()
    stderr = errors.read_text()
    assert status == 0, stderr
    # Some show how a flow is parked, which is logged.
    assert stderr == "" or stderr.partition("\n")[0].endswith("ends it"), stderr
    assert stdout == PRINTED.get(name, stdout)


@pytest.mark.parametrize(("page", "count"), [("flows", 15), ("from-", 5), ("services", 10)])
def test_what_is_printed_is_compared(page: str, count: int) -> None:
    assert sum(name.startswith(page) for name in PRINTED) > count
