"""Words that other tools have for what is done here, for those who know them better."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_SAME = (
    (("list", "all", "ls", "ps", "top"), ("ls", "ps", "keys", "show")),
    (("get", "describe", "info", "inspect", "view", "cat", "status", "detail"), ("show",)),
    (("replay", "requeue", "redrive", "reprocess", "again", "revive"), ("retry",)),
    (("delete", "del", "rm", "remove", "discard", "forget"), ("drop", "purge", "rm", "unschedule")),
    (("clear", "empty", "flush", "truncate", "drop"), ("purge", "drop")),
    (("send", "publish", "push", "put", "enqueue", "produce", "add"), ("post", "signal", "emit")),
    (("consume", "browse", "tail", "head", "read", "look", "receive"), ("peek",)),
    (("start", "run", "create", "new", "launch", "execute"), ("begin", "submit", "start", "run")),
    (("save", "set", "create", "new"), ("add", "init", "issue")),
    (("stop", "cancel", "abort", "terminate", "end", "delete", "rm", "remove"), ("kill", "stop")),
    (("continue", "unpause", "go"), ("resume",)),
    (("suspend", "hold", "freeze"), ("pause",)),
    (("steps", "log", "logs", "events"), ("history", "logs")),
    (("invoke", "request", "exec"), ("call", "run")),
    (("mv", "transfer", "copy"), ("move",)),
    (("switch", "select", "set"), ("use",)),
    (("validate", "lint", "test", "verify"), ("check", "explain")),
    (("draw", "plan"), ("explain", "graph", "map")),
    (("reset", "restart"), ("retry", "reset")),
    (("health", "ready"), ("health",)),
    (("list", "names"), ("definitions",)),
)
"""What people say, and the verbs that are meant by it: the first that there is."""

_COMMANDS = {
    **dict.fromkeys(("actions", "methods"), "service actions"),
    **dict.fromkeys(("benchmark", "perf"), "bench"),
    **dict.fromkeys(("console", "repl", "cli"), "shell"),
    **dict.fromkeys(("create", "init", "startproject", "scaffold"), "new"),
    **dict.fromkeys(("dead", "deadletter", "deadletters", "failed"), "dlq ls"),
    **dict.fromkeys(("explain", "error"), "errors"),
    **dict.fromkeys(("flows", "workflow", "workflows"), "flow ls"),
    **dict.fromkeys(("health", "status", "ping"), "node health"),
    **dict.fromkeys(("invoke", "request", "exec"), "call"),
    **dict.fromkeys(("jobs", "pipelines"), "job ls"),
    **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("map", "draw"), "graph"),
    **dict.fromkeys(("members", "nodes", "peers"), "cluster ls"),
    **dict.fromkeys(("monitor", "watch", "ls", "list", "overview"), "top"),
    **dict.fromkeys(("ps", "cell"), "cells ps"),
    **dict.fromkeys(("publish", "event"), "emit"),
    **dict.fromkeys(("queues", "messages", "mail"), "queue ls"),
    **dict.fromkeys(("run", "serve", "dashboard", "ui"), "dev"),
    **dict.fromkeys(("send", "post", "enqueue"), "queue post"),
    **dict.fromkeys(("services",), "service ls"),
    **dict.fromkeys(("settings",), "config show"),
    **dict.fromkeys(("start",), "node start"),
    **dict.fromkeys(("stop", "shutdown"), "node stop"),
    **dict.fromkeys(("traces",), "trace ls"),
    "help": "--help",
    "version": "--version",
}
"""Likewise for the first word."""


def find_meant(word: str, verbs: Collection[str], *, is_first: bool = False) -> str | None:
    """What somebody means who says a word that there is not; None if nobody can tell.

    Args:
        verbs: those there are.
        is_first: whether it stands directly behind `postroad`.
    """
    word = word.lower()
    if word in verbs:
        return word
    if is_first and word in _COMMANDS:
        return _COMMANDS[word]
    for said, meant in () if is_first else _SAME:
        if word in said and (known := [it for it in meant if it in verbs]):
            return known[0]
    return next(iter(difflib.get_close_matches(word, verbs, n=1)), None)
