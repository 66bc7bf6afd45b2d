"""Commands that come while `postroad dev` starts its node again."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.cli.main import run
from tests.support.cli.commands import APP, QUIET, Command

pytestmark = pytest.mark.timeout(600)


def test_they_wait_for_the_node_or_tell_what_is_wrong(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    app = tmp_path / "app.py"
    app.write_text(APP)
    with Command(tmp_path, "dev", *QUIET) as dev:
        dev.wait_for("actions    greeter")
        app.write_text("def f(:\n")
        dev.wait_for("It waits for the next save")
        assert run(["call", "greeter.hello"]) == 3
        assert capsys.readouterr().err == (
            "postroad: no node runs: `postroad dev` waits for a save; app.py:1: SyntaxError:"
            " invalid syntax\n"
        )
        app.write_text(APP.replace("hello {name}", "hallo {name}"))
        dev.wait_for("starting again", 2)
        while run(["call", "greeter.hello"]) == 3:
            # It is slower to begin than anybody waits for on a busy machine.
            continue
        assert capsys.readouterr().out == "hallo you\n"
        assert dev.stop() == 0
    assert run(["call", "greeter.hello"]) == 3
    assert "no node runs in .postroad: start one with" in capsys.readouterr().err
