"""Every operation can be said on the command line, and says how."""

import shlex
from pathlib import Path

import click
import pytest

from postroad.admin.operations import OPERATIONS, Effect
from postroad.cli.main import COMMANDS, postroad
from postroad.cli.nouns import make_group
from postroad.cli.spellings import GROUPS, SPELLINGS
from tests.support.cases import each

NOUNS = sorted({it.noun for it in OPERATIONS.values()})
EXAMPLES = [
    (name, line) for name, spelling in SPELLINGS.items() for line in spelling.example.splitlines()
]


def parse(words: list[str]) -> tuple[click.Context, click.Command]:
    """Read a command without running it."""
    command: click.Command = postroad
    context = click.Context(command, info_name="postroad")
    while isinstance(command, click.Group):
        context = command.make_context(str(command.name), words, parent=context)
        _, found, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert found is not None
        command = found
    return command.make_context(str(command.name), words, parent=context), command


def test_tables_are_those_of_the_operations() -> None:
    assert sorted(SPELLINGS) == sorted(OPERATIONS)
    assert sorted(GROUPS) == NOUNS
    made = [name for name, it in COMMANDS.items() if it.target.startswith("postroad.cli.nouns:")]
    assert sorted(made) == NOUNS
    for noun in NOUNS:
        group = make_group(noun)
        verbs = {it.verb for it in OPERATIONS.values() if it.noun == noun}
        assert verbs <= {*group.list_commands(click.Context(group))}, noun
    for noun in NOUNS:
        group = make_group(noun)
        for verb in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), verb)
            assert command is not None
            names = [it.name for it in command.params]
            assert len(names) == len({*names}), f"{noun} {verb}"


@each(*EXAMPLES)
def test_every_example_can_be_said(
    name: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clearing.toml").touch()
    words = shlex.split(example)
    noun, _, verb = name.partition(".")
    assert words[0] == noun
    _, command = parse(words)
    assert command.name == verb


@each(*OPERATIONS)
def test_manners(name: str) -> None:
    operation = OPERATIONS[name]
    # Not by its verb alone: what is done with the file of a job is said otherwise.
    _, command = parse(shlex.split(SPELLINGS[name].example.splitlines()[0]))
    options = {option for it in command.params for option in it.opts}
    assert "Example:" in (command.help or "")
    assert "--json" in options
    assert ("--watch" in options) == operation.is_read
    is_asked = operation.effect is Effect.DANGER or SPELLINGS[name].every is not None
    assert ({"--dry-run", "--yes"} <= options) == is_asked
    assert {"--url", "--token", "--node", "--data", "--store", "--context"} <= options


@each(*[name for name, it in OPERATIONS.items() if it.effect is Effect.DANGER])
def test_whoever_is_asked_is_told_what_it_touches(name: str) -> None:
    spelling = SPELLINGS[name]
    assert spelling.scope is not None
    assert spelling.warning
    if spelling.scope.operation is not None:
        asked = OPERATIONS[spelling.scope.operation]
        assert asked.is_read
        if spelling.scope.field is not None:
            assert spelling.scope.field in asked.result.__struct_fields__
