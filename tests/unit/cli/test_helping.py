"""Every command tells what it takes, word by word, and gives an example."""

from collections.abc import Iterator

import click
from click.testing import CliRunner

from postroad.cli.helping import Argument
from postroad.cli.main import postroad
from tests.support.cases import each


def commands(
    group: click.Group = postroad, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command there is, with the words that it is called by."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


COMMANDS = dict(commands())


@each(*[(words,) for words in COMMANDS])
def test_every_command_explains_its_words_with_an_example(words: tuple[str, ...]) -> None:
    for it in COMMANDS[words].params:
        if isinstance(it, click.Argument):
            assert isinstance(it, Argument), it.name
            assert it.explanation.endswith("."), it.name
        elif isinstance(it, click.Option) and not it.hidden:
            assert it.help, it.name
    result = CliRunner().invoke(postroad, [*words, "--help"], prog_name="postroad")
    assert result.exit_code == 0
    assert "\n  Example" in result.output
    assert f"\n    postroad {words[0]}" in result.output
    sections = [it for it in result.output.splitlines() if it.endswith(":") and it[0] != " "]
    has_arguments = any(isinstance(it, click.Argument) for it in COMMANDS[words].params)
    assert (sections[:1] == ["Arguments:"]) is has_arguments
    assert "Options:" in sections
