"""What is copied out of the dashboard means in a terminal what it means in the browser."""

import json
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from postroad.admin.operations import OPERATIONS
from postroad.cli.main import postroad
from tests.browser.watcher import Dashboard

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Something of each kind, for whatever an operation can be told.
SAID: dict[str, Any] = {
    "arguments": {"item": "tea", "count": 3},
    "body": {"it's": [1, None, "two"]},
    "cell": "relay@alpha",
    "command": "help ps",
    "data": {"a": 1},
    "headers": {"weight": "3"},
    "ids": ["17", "18"],
    "job": "sums",
    "limit": 5,
    "on": "spark",
    "params": {"name": "Ann's", "number": "7"},
    "step": 2,
    "text": "-x",
    "value": {"yes": True},
}


async def test_every_copied_command_can_be_said(
    dashboard: Dashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await dashboard.enter()
    for name, operation in OPERATIONS.items():
        required = [it.name for it in operation.parameters if it.is_required]
        for told in (required, [it.name for it in operation.parameters]):
            params = {it: SAID.get(it, sample(operation.params, it)) for it in told}
            command = await in_page(dashboard, "asCommand", name, params)
            words = shlex.split(command)
            assert words[:3] == ["postroad", *name.split(".")]
            parse(words[1:])


async def test_copied_values_arrive_as_they_were_meant(dashboard: Dashboard) -> None:
    await dashboard.enter()
    params = {"action": "greeter.hello", "params": SAID["params"]}
    command = await in_page(dashboard, "asCommand", "service.call", params)
    said = parse(shlex.split(command)[1:])
    assert said["action"] == "greeter.hello"
    assert dict(said["params"]) == SAID["params"]
    everything = await in_page(dashboard, "asCommand", "dlq.retry", {})
    assert everything == "postroad dlq retry --all"


async def test_a_copied_curl_carries_no_token(dashboard: Dashboard) -> None:
    await dashboard.enter()
    for name in OPERATIONS:
        command = await in_page(dashboard, "asCurl", name, {"queue": "it's"})
        words = shlex.split(command)
        assert words[:3] == ["curl", "-H", "Authorization: Bearer $POSTROAD_TOKEN"]
        assert words[-1].startswith(f"{dashboard.url}/api/v1/{name.replace('.', '/')}")


async def in_page(dashboard: Dashboard, function: str, *said: Any) -> str:
    """What a function of the dashboard makes of this."""
    told = ", ".join(json.dumps(it) for it in said)
    code = f"import('/js/commands.js').then(it => it.{function}({told}))"
    return str(await dashboard.evaluate(code))


def sample(params: Any, name: str) -> Any:
    """A value that a parameter takes, where any text would do it."""
    kind = str(params.__annotations__[name])
    if "bool" in kind:
        return True
    if "int" in kind or "float" in kind:
        return 3
    return {"status": "done", "type": "queue"}.get(name, "alpha")


def parse(words: list[str]) -> dict[str, Any]:
    """Have the command line read words, without doing what they say."""
    context = click.Context(postroad, info_name="postroad")
    command: click.Command = postroad
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        context = click.Context(command, info_name=name, parent=context)
    command.parse_args(context, words)
    return context.params
