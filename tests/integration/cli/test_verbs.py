"""Commands on a node that runs: what they show, what they do, and how they end."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.cli.main import run
from postroad.flows import FlowContext, flow
from postroad.node import Node
from tests.support import deadlines
from tests.support.cli.nodes import RunningNode, make_app, running_node
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import until_dead

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(alpha: RunningNode, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command on the node; returns its exit code and what it wrote."""

    def run_there(*words: str) -> tuple[int, str, str]:
        code = run([*words, *alpha.place])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_there


def read(say: Say, *words: str) -> Any:
    code, out, err = say(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def eventually(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def test_the_node_is_shown(say: Say) -> None:
    code, out, _ = say("node", "show")
    assert code == 0
    assert out.startswith("name: alpha\ncluster: shop\n")
    assert "state: running\n" in out


def test_members_and_the_picture(say: Say) -> None:
    (member,) = read(say, "cluster", "ls")
    assert (member["name"], member["state"]) == ("alpha", "alive")
    code, out, _ = say("graph")
    assert code == 0
    assert out.startswith("node alpha (alive at ")
    assert " service greeter (greeter.hello) [serves]" in out
    assert say("graph", "--mermaid")[1].startswith("flowchart LR\n")
    assert say("graph", "--dot")[1].startswith("digraph postroad {\n")
    assert say("export", "mermaid")[1].startswith("flowchart LR\n")
    code, out, _ = say("export", "jsonschema")
    assert code == 0
    assert json.loads(out)["greeter.hello"]["properties"]["name"]["type"] == "string"


def test_an_action_is_called(say: Say) -> None:
    assert say("call", "greeter.hello", "name=Ann") == (0, "Hello Ann!\n", "")
    assert say("call", "greeter.hello", "--params", '{"name": "Bob"}')[1] == "Hello Bob!\n"
    assert read(say, "call", "greeter.hello", "name=Ann")["result"] == "Hello Ann!"
    assert say("service", "call", "greeter.hello", "name=Eve")[1] == "Hello Eve!\n"


def test_what_cannot_be_called(say: Say) -> None:
    code, _, err = say("call", "greeter.helo", "name=Ann")
    assert code == 3
    assert "'greeter.helo'; did you mean 'greeter.hello'?\nTry: postroad service actions\n" in err
    assert say("call", "greeter.hello", "name=Ann", "--params", "{}")[0] == 2


UNREADABLE = [
    (["name"], "'name' is not of the form name=value, as in count=2. All at once is --params"),
    (["--params", "{"], "'{' is no JSON: expecting property name enclosed in double quotes"),
    (["--params", '{"name": Ann}'], "at character 10, before 'Ann}'. This works: '{"),
    (["--params", "[1]"], "[1] is no JSON object: parameters have names, as in '{"),
]


def test_params_that_cannot_be_read(say: Say) -> None:
    for words, told in UNREADABLE:
        code, _, err = say("call", "greeter.hello", *words)
        assert code == 2, words
        assert told in err, words


def test_params_that_do_not_fit(say: Say) -> None:
    code, _, err = say("call", "greeter.hello", "names=Ann")
    assert code == 1
    assert (
        "no parameter is called 'names'; did you mean 'name'? The 'name' field is required" in err
    )
    code, _, err = say("call", "greeter.hello", "name=17")
    assert (code, err.splitlines()[1:]) == (1, ["Try: postroad call greeter.hello 'name=\"17\"'"])
    code, out, err = say("call", "greeter.hello", "name=Ann", "names=Bob")
    assert (code, out) == (0, "Hello Ann!\n")
    assert err == "postroad: greeter.hello: no parameter is called 'names'; did you mean 'name'?\n"


def test_a_wrong_token_and_where_the_right_one_is(
    alpha: RunningNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["queue", "ls", "--data", str(alpha.data), "--token", "wrong"]) == 1
    warning, told, advice = capsys.readouterr().err.splitlines()
    assert warning.startswith("--token can be read by every user")
    assert told == (
        "postroad: this is not the token; the right one is in alpha.token in its data directory"
    )
    assert advice.startswith(
        "Try: leave out --token-file and POSTROAD_TOKEN: that of node alpha is read"
    )
    assert run(["queue", "ls", "--url", alpha.url]) == 1
    told, advice = capsys.readouterr().err.splitlines()
    assert told.startswith("postroad: a token is needed; the right one is in alpha.token")
    assert advice.endswith(f"postroad context add NAME --url {alpha.url} --token-file FILE")
    kept = ["--url", alpha.url, "--token-file", str(alpha.data / "alpha.token")]
    assert run(["queue", "ls", *kept]) == 0


def test_an_event_is_emitted_though_nobody_may_hear_it(say: Say) -> None:
    assert read(say, "emit", "order.created", "id=17")["groups"] == ["greeter"]
    code, _, err = say("emit", "nobody.hears")
    assert code == 0
    assert err == "postroad: nobody listens to nobody.hears; see `postroad service events`\n"


def test_cells_that_are_nowhere(say: Say) -> None:
    for words in (("run", "printr", "ink"), ("traceroute", "printr"), ("kill", "printr", "--yes")):
        code, _, err = say("cells", *words)
        assert code == 3
        assert "printr" in err and err.endswith("\nTry: postroad cells ps\n")
    assert "; did you mean 'printer'?" in say("cells", "run", "printr", "ink")[2]
    code, out, _ = say("cells", "ping", "printr")
    assert code == 1
    assert "no route for printr@local" in out


def test_a_queue_is_filled_looked_at_moved_and_emptied(say: Say, alpha: RunningNode) -> None:
    for queue in ("waiting", "parking"):
        assert say("queue", "post", queue, '{"number": 1}', "--key", "ann")[0] == 0
        eventually(partial(has_one, say, queue), f"{queue} has its message")
    (letter,) = read(say, "queue", "peek", "waiting")
    assert (letter["key"], letter["encoding"]) == ("ann", "json")
    code, out, _ = say("queue", "move", "waiting", "parking", "--dry-run")
    assert (code, out) == (
        0,
        "Nothing is done. What waits in waiting is moved to parking. It touches 1 message.\n",
    )
    assert say("queue", "move", "waiting", "parking", "--yes")[1] == "1 message moved to parking.\n"
    assert (depth(say, "waiting"), depth(say, "parking")) == (0, 2)
    assert say("queue", "purge", "parking", "--yes")[1] == "2 messages removed from parking.\n"
    assert say("queue", "pause", "parking")[1].count("paused: yes") == 1
    assert say("queue", "resume", "parking")[1].count("paused: no") == 1


def has_one(say: Say, queue: str) -> bool:
    return depth(say, queue) == 1


def depth(say: Say, queue: str) -> int:
    return sum(it["depth"] for it in read(say, "queue", "ls") if it["name"] == queue)


def test_dangerous_verbs_ask_first(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    assert say("queue", "post", "asked", "x")[0] == 0
    eventually(lambda: depth(say, "asked") == 1, "it waits")
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    code, out, err = say("queue", "purge", "asked")
    assert (code, out) == (1, "")
    assert err.startswith("What waits in asked is removed for good. It touches 1 message.\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert say("queue", "purge", "asked")[0] == 2
    assert depth(say, "asked") == 1
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert say("queue", "purge", "asked")[1] == "1 message removed from asked.\n"
    # Where there is nothing, nobody is asked.
    assert say("queue", "purge", "asked") == (0, "0 messages removed from asked.\n", "")


def test_dead_letters_are_grouped_retried_and_dropped(say: Say) -> None:
    assert say("queue", "post", "orders", "a bad one")[0] == 0
    eventually(lambda: bool(read(say, "dlq", "ls")), "it died")
    (group,) = read(say, "dlq", "groups")
    assert (group["queue"], group["reason"]) == ("orders", "rejected")
    (dead,) = read(say, "dlq", "ls", "--reason", "rejected")
    assert dead["retried"] == 0
    assert say("dlq", "retry", dead["id"])[1] == "1 dead letter will be tried again.\n"
    eventually(lambda: [it["retried"] for it in read(say, "dlq", "ls")] == [1], "it died again")
    assert say("dlq", "drop", "--all", "--yes")[1] == "1 dead letter dropped.\n"
    assert say("dlq", "ls")[1] == "None.\n"


def test_a_flow_from_its_beginning_to_its_end(say: Say) -> None:
    begun = read(say, "flow", "begin", "pay", "amount=5", "--client-id", "order-9")
    id = begun["id"]
    assert say("search", id)[1].splitlines()[1].split()[:2] == ["flow", id]
    assert say("flow", "signal", id, "approved", "true")[0] == 0
    eventually(lambda: read(say, "flow", "show", id)["status"] == "done", "it is paid")
    assert [it["kind"] for it in read(say, "flow", "history", id)][:1] == ["signal"]
    code, _, err = say("flow", "kill", id, "--yes")
    assert code == 1
    assert "has ended" in err
    code, _, err = say("flow", "begin", "pai")
    assert code == 3
    assert err == (
        "postroad: node alpha has no flow 'pai'; did you mean 'pay'?\n"
        "Try: postroad flow definitions\n"
    )
    assert "no flow 'sell'; there is 'pay'\n" in say("flow", "begin", "sell")[2]


def test_cells_answer(say: Say) -> None:
    assert say("cells", "run", "printer@alpha", "ink") == (0, "half a bottle\n", "")
    (pinged,) = read(say, "cells", "ping", "printer@alpha")
    assert pinged["error"] is None
    names = [it["name"] for it in read(say, "cells", "ps", "--pattern", "print*")]
    assert names == ["printer"]


def test_the_page_of_top_is_printed_into_a_pipe(say: Say) -> None:
    code, out, _ = say("top")
    assert code == 0
    assert out.startswith("shop / alpha  running  version ")
    assert "\x1b" not in out


def test_logs_and_errors(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("logs")[0] == 0
    assert run(["errors", "StoreLockedError"]) == 0
    assert capsys.readouterr().out.startswith("StoreLockedError, error 5110\n")


def test_a_request_is_followed_from_hop_to_hop(say: Say) -> None:
    assert say("call", "greeter.hello", "name=Ann")[0] == 0

    def traced() -> list[Any]:
        return [it for it in read(say, "trace", "ls") if "greeter.hello" in it["root"]]

    eventually(lambda: bool(traced()), "the call is remembered")
    code, out, _ = say("trace", traced()[0]["id"])
    assert code == 0
    assert "greeter.hello" in out.splitlines()[0]
    assert out.splitlines()[0].split()[-1] == "alpha"
    code, _, err = say("trace", "0" * 32)
    assert code == 3
    assert err.endswith("Try: postroad trace ls\n")


def test_wrong_words(say: Say) -> None:
    code, _, err = say("queue", "shw")
    assert code == 2
    assert "No such command 'shw'. Did you mean 'postroad queue show'?" in err
    code, _, err = say("queue", "show", "ordrs")
    assert code == 3
    assert "did you mean 'orders'?\nTry: postroad queue ls\n" in err
    assert say("queue", "peek", "orders", "--limit", "0")[0] == 2


def test_where_it_is(
    alpha: RunningNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["node", "show", "--url", alpha.url, "--token", alpha.token]) == 0
    assert run(["node", "show", "--url", alpha.url, "--token", "wrong-0123456789"]) == 1
    assert "Try: " in capsys.readouterr().err
    monkeypatch.setenv("POSTROAD_URL", alpha.url)
    monkeypatch.setenv("POSTROAD_TOKEN", alpha.token)
    assert run(["node", "show"]) == 0
    monkeypatch.delenv("POSTROAD_URL")
    assert run(["context", "add", "shop", "--url", alpha.url, "--token", alpha.token]) == 0
    assert run(["node", "show"]) == 0
    monkeypatch.delenv("POSTROAD_TOKEN")
    assert run(["node", "show"]) == 0
    assert run(["node", "show", "--context", "shop"]) == 0


def test_several_nodes_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_node(tmp_path, "one") as one:
        contact = (str(one.node.service.address),)
        with running_node(tmp_path, "two", seeds=contact) as two:
            assert run(["node", "show", "--data", str(tmp_path)]) == 2
            err = capsys.readouterr().err
            assert f"one ({one.url}), two ({two.url}). Say which with --node." in err
            assert run(["node", "show", "--data", str(tmp_path), "--node", "two"]) == 0
            assert capsys.readouterr().out.startswith("name: two\n")

            def reaches_the_other() -> bool:
                place = ["--url", one.url, "--token", one.token, "--node", "two"]
                code = run(["node", "show", *place])
                return code == 0 and capsys.readouterr().out.startswith("name: two\n")

            eventually(reaches_the_other, "one knows two")


def test_a_node_that_is_dead_or_unknown_is_named_among_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True
    )
    card = {"name": "worker-1", "cluster": "shop", "pid": int(ended.stdout)}
    left = {**card, "url": "http://127.0.0.1:1", "version": "1"}
    (tmp_path / "worker-1.node.json").write_text(json.dumps(left))
    show = ["node", "show", "--data", str(tmp_path), "--node"]
    assert run([*show, "worker-1"]) == 3
    err = capsys.readouterr().err
    assert f"node worker-1 does not run: its process {card['pid']} has ended" in err
    with running_node(tmp_path, "one") as one:
        assert run([*show, "worker-1"]) == 3
        assert "node worker-1 does not run" in capsys.readouterr().err
        with running_node(tmp_path, "two"):
            assert run([*show, "worker-1"]) == 3
            assert "node worker-1 does not run" in capsys.readouterr().err
            assert run([*show, "ones"]) == 3
            err = capsys.readouterr().err
            assert "no node 'ones' runs" in err
            assert f"did you mean 'one'?: there are one ({one.url}), two (" in err


def test_check_fails_for_whatever_waits_for_an_operator_and_probes_can_ask_for_readiness_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @flow
    async def break_down(ctx: FlowContext) -> None:
        raise ValueError("no paper")

    async def fill(node: Node, what: str) -> None:
        if what == "dead letter":
            await node.queues.send("orders", b"bad", to=node.name)
            await until_dead(node.queues, 1)
        else:
            await node.flows.start_flow(break_down)
            await deadlines.eventually(lambda: node.flows.admin.list("parked"), "it is parked")

    for number, what in enumerate(("dead letter", "parked")):
        app = msgspec.structs.replace(make_app(), flows=[break_down])
        with running_node(tmp_path, f"n{number}", app=app) as one:
            one.do(fill(one.node, what))

            def is_reported(place: list[str] = one.place, what: str = what) -> bool:
                code = run(["check", *place])
                out = capsys.readouterr().out
                assert (code == 4) == out.startswith("POSTROAD WARNING - "), out
                return code == 4 and what in out

            eventually(is_reported, f"{what} is reported")
            assert run(["check", "--format", "json", *one.place]) == 4
            assert run(["check", "--ready", *one.place]) == 0
            assert capsys.readouterr().out.rpartition("POSTROAD ")[2].startswith("WARNING - ")


def test_monitors_are_told_of_a_node_that_drains_and_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_node(tmp_path, "gamma") as gamma:
        assert run(["check", *gamma.place]) == 0
        assert capsys.readouterr().out.startswith("POSTROAD OK - node gamma is ready | members=1 ")
        assert run(["check", "--format", "json", *gamma.place]) == 0
        assert json.loads(capsys.readouterr().out)["status"] == "ok"
        assert run(["node", "drain", *gamma.place]) == 0
        capsys.readouterr()
        assert run(["check", *gamma.place]) == 4
        assert run(["check", "--ready", *gamma.place]) == 4
        assert capsys.readouterr().out.startswith("POSTROAD CRITICAL - ")
        assert run(["node", "health", *gamma.place]) == 4
        assert run(["node", "stop", "--yes", *gamma.place]) == 0
