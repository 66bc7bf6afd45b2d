"""`postroad cheat`: examples by topic."""

import pytest

from postroad.cli.main import run
from postroad.cli.spellings import GROUPS


def test_topics_and_their_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cheat"]) == 0
    assert [it.split()[0] for it in capsys.readouterr().out.splitlines()] == sorted(GROUPS)
    assert run(["cheat", "dlq"]) == 0
    out = capsys.readouterr().out
    assert "\npostroad dlq retry 17 18\npostroad dlq retry --all\n" in out
    assert run(["cheat", "dql"]) == 3
    assert "did you mean 'dlq'?" in capsys.readouterr().err
