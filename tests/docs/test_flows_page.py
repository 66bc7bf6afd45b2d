"""What the page of flows says about commits and envelopes, looked up in a run."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from postroad import flows
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows import FlowService
from postroad.flows.engine.flow_mutation import FlowMutation
from postroad.flows.machine.status import FlowStatus
from tests.docs.pages import ROOT, files_of, programs
from tests.support.durable.mail_pairs import running_pair

TEXT = (ROOT / "docs" / "flows-internals.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "flows-operations.md").read_text(encoding="utf-8")
JOURNEY = "## The journey of a message"
TOLD = re.compile(r"^```sh\n(python hotel\.py\n[^`]*)```\n\n```text\n([^`]*)```$", re.MULTILINE)
ID = re.compile(r"\b[0-9a-f]{16}\b")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


class Committed(NamedTuple):
    """One commit of a flow."""

    flow: str
    status: FlowStatus
    is_new: bool
    steps: list[str]
    consumed: int
    envelopes: int
    said: list[str]


@pytest.fixture
def page_flows(tmp_path: Path) -> ModuleType:
    """The flows of the page, from its first program."""
    program = programs()["flows-internals-1"].partition("\n\nasync def main()")[0]
    path = tmp_path / "ping_and_pong.py"
    path.write_text(program)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[Committed]:
    """All that flows commit, in order."""
    seen: list[Committed] = []
    apply = FlowMutation.apply

    def apply_and_tell(mutation: FlowMutation, ledger: StoreTables) -> None:
        apply(mutation, ledger)
        seen.append(
            Committed(
                mutation.state.name,
                mutation.state.status,
                mutation.transition.is_new,
                [entry.label for entry in mutation.transition.entries],
                len(mutation._dispositions),
                len(mutation._sends),
                [
                    type(it).__name__
                    for said in mutation.transition.outgoing.values()
                    for it in said
                ],
            )
        )

    monkeypatch.setattr(FlowMutation, "apply", apply_and_tell)
    return seen


async def test_the_journey_takes_three_commits_and_two_envelopes(
    tmp_path: Path, page_flows: ModuleType, commits: list[Committed]
) -> None:
    ping, pong = page_flows.ping, page_flows.pong
    async with (
        running_pair(tmp_path) as pair,
        FlowService(pair.alpha.mail, [ping]) as runner,
        FlowService(pair.beta.mail, [pong]),
    ):
        assert await runner.run_flow(ping, "beta") == "Pong"

    assert commits == [
        Committed("ping", FlowStatus.RUNNING, True, ["0 send(beta)"], 0, 1, ["SessionInit"]),
        Committed(
            "pong",
            FlowStatus.COMPLETED,
            True,
            ["0 receive(alpha)", "1 send(alpha)"],
            1,
            1,
            ["SessionConfirm", "SessionData", "SessionClose"],
        ),
        Committed("ping", FlowStatus.COMPLETED, False, ["1 receive(beta)"], 1, 0, []),
    ]


def test_the_page_tells_what_is_committed() -> None:
    journey = TEXT.partition(JOURNEY)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \d, (\w+) \| `(\w+)` \| (.*) \|$", journey, re.MULTILINE)
    assert [row[:2] for row in rows] == [
        ("alpha", "FlowAdmitted"), ("beta", "FlowAdmitted"), ("alpha", "SessionMessagesReceived"),
    ]  # fmt: skip
    assert "Three events, three commits, two envelopes." in journey


def test_the_commands_for_operators_tell_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "hotel.py").write_text(files_of("flows-operations.md")["hotel.py"])
    found = TOLD.search(OPERATIONS)
    assert found is not None
    commands, told = found.groups()
    printed = ""
    for command in commands.splitlines():
        # The flow has another id here than on the page.
        id = ID.search(printed)
        printed += run(command if id is None else ID.sub(id[0], command), tmp_path)
    assert TIME.sub("(time)", ID.sub("(id)", printed)) == TIME.sub("(time)", ID.sub("(id)", told))


def run(command: str, directory: Path) -> str:
    """What a command prints that is given to a shell."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=directory,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The first command parks a flow, which is logged.
    assert not done.stderr or "of book is parked at 1 step(charge): KeyError" in done.stderr
    return done.stdout


def test_the_architecture_has_a_place_for_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| what | modules of `flows` |")[2].partition("\n\n")[0]
    modules = {path.stem for path in Path(flows.__path__[0]).glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)`", table)) == modules
