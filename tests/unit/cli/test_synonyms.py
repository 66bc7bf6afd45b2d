"""Words of other tools lead to those that there are."""

import click
import pytest

from postroad.cli.main import COMMANDS, postroad, run
from postroad.cli.synonyms import _COMMANDS, _SAME, find_meant
from tests.support.cases import each


@each(
    ("dlq replay", "dlq retry"),
    ("dlq requeue", "dlq retry"),
    ("dlq redrive", "dlq retry"),
    ("dlq delete", "dlq drop"),
    ("dlq rm", "dlq drop"),
    ("queue list", "queue ls"),
    ("queue remove", "queue purge"),
    ("queue describe", "queue show"),
    ("queue LS", "queue ls"),
    ("flow get", "flow show"),
    ("flow terminate", "flow kill"),
    ("flow abort", "flow kill"),
    ("flow start", "flow begin"),
    ("cells ls", "cells ps"),
    ("trace list", "trace ls"),
    ("context remove", "context rm"),
    ("config validate", "config check"),
    ("queues", "queue ls"),
    ("run", "dev"),
    ("version", "--version"),
    ("help", "--help"),
)
def test_another_word_for_a_command(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    assert f"Did you mean 'postroad {meant}'?\n" in capsys.readouterr().err


def test_synonyms_lead_to_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queue", "zzz"]) == 2
    assert capsys.readouterr().err.endswith("No such command 'zzz'.\n")
    assert find_meant("zzz", ["ls"]) is None
    verbs = set()
    for name, entry in COMMANDS.items():
        command = entry.load()
        if isinstance(command, click.Group):
            verbs |= {*command.list_commands(click.Context(command))}
        verbs.add(name)
    assert {it for _, meant in _SAME for it in meant} <= verbs
    for words in _COMMANDS.values():
        context = click.Context(postroad, resilient_parsing=True)
        if not words.startswith("--"):
            assert postroad.get_command(context, words.split()[0]) is not None
