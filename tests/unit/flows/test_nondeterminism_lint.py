"""Calls that flow code should not make are found by what they are, not by how they are spelled."""

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from postroad.flows.nondeterminism_lint import (
    NondeterministicCall,
    find_nondeterministic_calls,
    format_findings,
)
from tests.support.cases import each

FlowCode = Callable[..., Any]
Write = Callable[[str], FlowCode]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a module with a function `work` in it, and load it."""

    def write_module(text: str) -> FlowCode:
        path = tmp_path / "orders.py"
        path.write_text(dedent(text), encoding="utf-8")
        names: dict[str, Any] = {"__name__": "orders"}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
        work: FlowCode = names["work"]
        return work

    return write_module


@pytest.fixture
def calls(write: Write) -> Callable[[str, str], list[str]]:
    """What is found in a body, after the given imports."""

    def find(head: str, body: str) -> list[str]:
        text = f"{head}\nasync def work(flow, x=None):\n{indent(dedent(body), '    ')}\n"
        return [impurity.call for impurity in find_nondeterministic_calls(write(text))]

    return find


Calls = Callable[[str, str], list[str]]


@each(
    ("import asyncio", "await asyncio.sleep(1)", "asyncio.sleep", "ctx.sleep"),
    ("import asyncio", "await asyncio.wait_for(x, 1)", "asyncio.wait_for", "ctx.select"),
    ("import asyncio", "async with asyncio.timeout(1): x()", "asyncio.timeout", "ctx.sleep"),
    ("import asyncio", "await asyncio.wait([x])", "asyncio.wait", "ctx.select"),
    ("import asyncio", "await asyncio.gather(x)", "asyncio.gather", "ctx.gather"),
    ("import asyncio", "asyncio.create_task(x)", "asyncio.create_task", "ctx.gather"),
    ("import asyncio", "asyncio.ensure_future(x)", "asyncio.ensure_future", "ctx.gather"),
    ("import asyncio", "async with asyncio.TaskGroup(): x()", "asyncio.TaskGroup", "gather"),
    ("import asyncio", "asyncio.as_completed([x])", "asyncio.as_completed", "ctx.gather"),
    ("import asyncio", "await asyncio.to_thread(x)", "asyncio.to_thread", "ctx.step"),
    ("import asyncio", "asyncio.Event()", "asyncio.Event", "ctx.wait_for_signal"),
    ("import asyncio", "asyncio.Queue[int]()", "asyncio.Queue", "ctx.wait_for_signal"),
    ("import asyncio", "async with asyncio.Lock(): x()", "asyncio.Lock", "ctx.wait_for_signal"),
    ("import time", "time.time()", "time.time", "ctx.now"),
    ("import time", "time.monotonic_ns()", "time.monotonic_ns", "ctx.now"),
    ("import time", "time.sleep(1)", "time.sleep", "ctx.sleep"),
    ("import time", "time.gmtime()", "time.gmtime", "ctx.now"),
    ("import datetime", "datetime.datetime.now()", "datetime.datetime.now", "ctx.now"),
    ("import datetime", "datetime.datetime.utcnow()", "datetime.datetime.utcnow", "ctx.now"),
    ("import datetime", "datetime.date.today()", "datetime.date.today", "ctx.now"),
    ("import datetime", "datetime.datetime.today()", "datetime.date.today", "ctx.now"),
    ("import random", "random.randint(1, 6)", "random.randint", "ctx.random"),
    ("import random", "random.random()", "random.random", "ctx.random"),
    ("import random", "random.Random()", "random.Random", "ctx.random"),
    ("import random", "random.SystemRandom(1)", "random.SystemRandom", "ctx.step"),
    ("import secrets", "secrets.token_hex()", "secrets.token_hex", "ctx.step"),
    ("import secrets", "secrets.choice(x)", "secrets.choice", "ctx.step"),
    ("import os", "os.urandom(4)", "os.urandom", "ctx.step"),
    ("import os", "os.system('ls')", "os.system", "ctx.step"),
    ("import uuid", "uuid.uuid4()", "uuid.uuid4", "ctx.uuid"),
    ("import uuid", "uuid.uuid1()", "uuid.uuid1", "ctx.uuid"),
    ("import threading", "threading.Thread(target=x)", "threading.Thread", "ctx.step"),
    ("import subprocess", "subprocess.run(['ls'])", "subprocess.run", "ctx.step"),
    ("import concurrent.futures as f", "f.ThreadPoolExecutor()", "", "ctx.step"),
    ("import multiprocessing", "multiprocessing.Process()", "", "ctx.step"),
    ("", "open('x')", "builtins.open", "ctx.step"),
    ("", "input()", "builtins.input", "ctx.step"),
)
def test_nondeterministic_calls_are_found(
    head: str, body: str, call: str, replacement: str, write: Write
) -> None:
    work = write(f"{head}\nasync def work(flow, x):\n    {body}\n")
    [finding] = find_nondeterministic_calls(work)
    assert finding.line == 3
    assert finding.call.endswith(call)
    assert replacement in finding.advice


@each(
    ("from time import time as t", "t()", "time.time"),
    ("import time as asyncio", "asyncio.sleep(1)", "time.sleep"),
    ("import datetime as dt", "dt.datetime.now(dt.UTC)", "datetime.datetime.now"),
    ("from datetime import datetime as time", "time.now()", "datetime.datetime.now"),
    ("from datetime import datetime\nnow = datetime.now", "now()", "datetime.datetime.now"),
    (
        "import datetime\nclass Moment(datetime.datetime): 'Ours.'",
        "Moment.now()",
        "datetime.datetime.now",
    ),
    ("import asyncio\npause = asyncio.sleep", "await pause(1)", "asyncio.sleep"),
    ("import asyncio.tasks", "await asyncio.tasks.sleep(1)", "asyncio.sleep"),
    ("from random import *", "shuffle(x)", "random.shuffle"),
    ("import io", "io.open('x')", "builtins.open"),
    ("import time\nclass Clock: now = time.time\nclock = Clock()", "clock.now()", "time.time"),
    ("", "import time\ntime.time()", "time.time"),
    ("", "import concurrent.futures as f\nf.ThreadPoolExecutor()", "ThreadPoolExecutor"),
    ("", "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()", "PoolExecutor"),
    ("", "from time import time as clock\nclock()", "time.time"),
    ("", "def inner():\n    import secrets as s\n    s.randbits(3)\ninner()", "randbits"),
)
def test_aliases_are_seen_through(head: str, body: str, call: str, calls: Calls) -> None:
    [finding] = calls(head, body)
    assert finding.endswith(call)


def test_names_around_and_imports_within_are_known(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    monkeypatch.delitem(sys.modules, "secrets", raising=False)
    assert calls("", "from secrets import token_hex as key\nkey()") == ["secrets.token_hex"]
    assert (
        find_nondeterministic_calls(write("import time\nasync def work(time): time.time()\n")) == []
    )
    assert calls("import time", "time.strftime('%Y')") == ["time.strftime"]
    body = """
    def fetch(): return time.time()
    def other(): return time.monotonic()
    await ctx.step(fetch)
    await ctx.step(lambda: other(), name=lambda: time.time_ns())
    """
    assert calls("import time", body) == ["time.monotonic", "time.time_ns"]
    assert [finding.call for finding in find_nondeterministic_calls(touches)] == ["time.time"]


@each(
    "[time.time() for _ in x]",
    "{key: value for key, value in x if time.time()}",
    "[x for x in [time.time()]]",
    "[x for time in time.time() for x in time]",
    "later = lambda: time.time()",
    "later = lambda at=time.time(): at",
    "def later():\n    return time.time()",
    "async def later():\n    def latest(): return time.time()\n    return latest",
    "def later(at=time.time()): return at",
    "@x(time.time())\ndef later(): return 1",
    "class Later:\n    at = time.time()",
    "class Later:\n    time = None\n    def at(self): return time.time()",
    "class Later(x, at=time.time()): 'Empty.'",
    "x(1, *[2], at=time.time())",
    "match x:\n    case {'a': _} if time.time(): x()",
    "try:\n    x()\nexcept ValueError:\n    time.time()",
    "return f'{time.time()}'",
    "global time\ntime.time()\ntime = x",
    "def inner():\n    nonlocal later\n    later = time.time()\nlater = inner",
    "await ctx.step(x, time.time())",
    "await ctx.step(x, name=time.time())",
    "ctx.now(time.time())",
)
def test_every_corner_is_looked_at(body: str, calls: Calls) -> None:
    assert calls("import time", body) == ["time.time"]


@each(
    "time = x\ntime.time()",
    "time: object = x\ntime.time()",
    "for time in x: time.time()",
    "with x as time: time.time()",
    "async with x as time: time.time()",
    "a, (b, *time) = x\ntime.time()",
    "if (time := x): time.time()",
    "[time := y for y in x]\ntime.time()",
    "[time.time() for time in x]",
    "{time.time(): 1 for (_, time) in x}",
    "try:\n    x()\nexcept ValueError as time:\n    time.time()",
    "match x:\n    case [*time]: time.time()",
    "match x:\n    case {'a': 1, **time}: time.time()",
    "match x:\n    case int() as time: time.time()",
    "def time(): return 1\ntime.time()",
    "class time: 'Ours.'\ntime.time()",
    "import json as time\ntime.time()",
    "from json import decoder as time\ntime.time()",
    "from .time import time\ntime()",
    "from . import time\ntime.time()",
    "def inner(time): time.time()",
    "def inner(*time): time.time()",
    "def inner(*, time): time.time()",
    "def inner(**time): time.time()",
    "lambda time: time.time()",
    "time = x\ndef inner(): time.time()",
    "class Ours:\n    time = x\n    at = time.time()",
    "import time\ntime = x\ntime.time()",
    "time = x\nimport time\ntime.time()",
)
def test_names_that_mean_something_else_here_are_not_reported(body: str, calls: Calls) -> None:
    assert calls("import time", body) == []


@each(
    "def fetch(): return time.time()\nawait ctx.step(fetch)",
    "async def fetch(): return time.time()\nawait ctx.gather(ctx.step(fetch, 1), x)",
    "fetch = lambda: time.time()\nawait ctx.step(fetch)",
    "await ctx.step(lambda: time.time())",
    "await ctx.step(time.time)",
)
def test_steps_may_do_everything(body: str, calls: Calls) -> None:
    assert calls("import time", body) == []


@each(
    ("import random", "random.Random(7).random()"),
    ("import time", "time.gmtime(0), time.strftime('%Y', x), time.strftime(*x)"),
    ("import datetime", "datetime.datetime.fromtimestamp(0), datetime.timedelta(1)"),
    ("import secrets", "secrets.compare_digest('a', 'b')"),
    ("import uuid", "uuid.uuid5(uuid.NAMESPACE_DNS, 'a'), uuid.UUID(x)"),
    ("import os", "os.environ['A'], os.getenv('A'), os.path.join('a', 'b')"),
    ("import asyncio", "asyncio.iscoroutine(x)"),
    ("import asyncio", "try: x()\nexcept asyncio.TimeoutError: x()"),
    ("", "await ctx.sleep(1); ctx.now(); ctx.random().random(); ctx.uuid(); print(1)"),
    ("", "await ctx.select(a=ctx.sleep(1), b=x)"),
    ("table = {'now': 1}", "table['now'](), missing(), missing.time(), x().time(), (x or 1)()"),
)
def test_deterministic_calls_are_not_reported(head: str, body: str, calls: Calls) -> None:
    assert calls(head, body) == []


def test_findings_are_ordered_by_line(write: Write) -> None:
    work = write(
        """\
        import random, time

        def decorate(function):
            return function

        @decorate
        async def work(
            flow,
            at=time.monotonic(),
        ):
            '''Work.'''
            first = random.random() + time.time() + time.time()

            def later():
                return time.time()

            both = [time.time_ns() for _ in [time.monotonic()]]
            return first, later, both
        """
    )
    assert [(finding.line, finding.call) for finding in find_nondeterministic_calls(work)] == [
        (12, "random.random"),
        (12, "time.time"),
        (15, "time.time"),
        (17, "time.time_ns"),
        (17, "time.monotonic"),
    ]


def test_source_that_is_indented_oddly_is_read(write: Write) -> None:
    work = write(
        """\
        import time
        class Works:
            async def work(self, flow):
                text = '''
        at the margin
        '''
                return text, time.time()
        work = Works().work
        """
    )
    assert [(finding.line, finding.call) for finding in find_nondeterministic_calls(work)] == [
        (7, "time.time")
    ]


def test_names_of_the_functions_around_are_known() -> None:
    clock = time.time
    ours = functools.partial

    async def work(flow: Any) -> Any:
        return clock(), ours(flow), unset()

    assert [finding.call for finding in find_nondeterministic_calls(work)] == ["time.time"]
    unset = time.time
    assert [finding.call for finding in find_nondeterministic_calls(work)] == ["time.time"]
    assert unset is clock


def test_decorated_functions_are_looked_at_below_their_decorator() -> None:
    def decorate(function: FlowCode) -> FlowCode:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args, time.monotonic())

        return wrapper

    @decorate
    async def work(flow: Any) -> Any:
        return flow, time.time()

    assert [finding.call for finding in find_nondeterministic_calls(work)] == ["time.time"]


class Hostile:
    """Raises at every touch."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError


hostile = Hostile()


async def touches(flow: Any) -> Any:
    hostile.time()
    return flow, hostile == 1, time.time()


@each(len, time.time, print, functools.partial(touches), Hostile, object(), None, lambda: input())
def test_without_readable_source_nothing_is_found(function: Any) -> None:
    assert find_nondeterministic_calls(function) == []


def test_functions_without_readable_source_have_no_impurities(write: Write, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec("import time\nasync def work(flow): time.time()", names)
    assert find_nondeterministic_calls(names["work"]) == []

    async def work(flow: Any) -> Any:
        return flow, time.time()

    work.__wrapped__ = work  # type: ignore[attr-defined]  # as a careless decorator might
    assert [finding.call for finding in find_nondeterministic_calls(work)] == ["time.time"]
    assert "work" in format_findings([NondeterministicCall(1, "a", "b")], work)
    work = write("import time\nasync def work(flow): time.time()\n")
    (tmp_path / "orders.py").write_text("(((\n'''\n" * 3, encoding="utf-8")
    assert find_nondeterministic_calls(work) == []


def test_explanation_has_file_line_call_and_advice(write: Write, tmp_path: Path) -> None:
    work = write("import time, uuid\nasync def work(flow):\n    time.time()\n    uuid.uuid4()\n")
    lines = format_findings(find_nondeterministic_calls(work), work).splitlines()
    path = tmp_path / "orders.py"
    assert lines == [
        "work may not do the same when it is run again after a crash:",
        f"  {path}:3: time.time(): use `ctx.now()`",
        f"  {path}:4: uuid.uuid4(): use `ctx.uuid()`",
    ]
    assert format_findings([], touches) == ""
    assert "unknown file:1: a(): b" in format_findings(
        [NondeterministicCall(1, "a", "b")], functools.partial(touches)
    )


def test_advice_for_a_def_has_no_await(write: Write) -> None:
    work = write(
        """
        import time, urllib.request
        from functools import partial

        def work(ctx):
            def fetch():
                return urllib.request.urlopen("http://localhost")

            time.sleep(1)
            urllib.request.urlopen("http://localhost")
            ctx.gather(partial(ctx.step, fetch))
        """
    )
    findings = find_nondeterministic_calls(work)
    assert [impurity.call for impurity in findings] == ["time.sleep", "urllib.request.urlopen"]
    text = format_findings(findings, work)
    assert "use `ctx.sleep(seconds)`" in text
    assert "await" not in text
