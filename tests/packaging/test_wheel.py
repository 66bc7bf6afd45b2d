"""The wheel: what is in it, and that all a newcomer tries first works with it.

By day on the oldest and the newest Python of the machine, at night on every one.
"""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.installed import Environment, build
from tests.support.interpreters import interpreters
from tests.support.source_tree import PACKAGE, ROOT
from tests.support.tiers import sample

pytestmark = pytest.mark.timeout(600)

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HINT = "pip install '.[{0}]' in a clone of its repository, or 'FILE.whl[{0}]'"
# What nobody wrote differs from run to run: ids and times.
VARYING = re.compile(r"\b(?:\d{19}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\b")

# All public names of all packages, as far as no extra is missing.
EVERYTHING = """
import importlib, pkgutil, sys
import postroad
from postroad.core.errors import MissingExtraError
hints = 0
for module in pkgutil.walk_packages(postroad.__path__, "postroad."):
    if module.ispkg:
        try:
            package = importlib.import_module(module.name)
            for name in package.__all__:
                getattr(package, name)
        except MissingExtraError as error:
            hints += str(error).count("FILE.whl")
print(postroad.__file__)
print(hints)
"""


class Built(NamedTuple):
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    target = tmp_path_factory.mktemp("dist")
    build(ROOT, target)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module", params=sample(list(interpreters()), 2))
def environment(
    request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """The wheel without extras."""
    place = tmp_path_factory.mktemp(f"python{request.param}")
    environment = Environment(interpreters()[request.param], place)
    environment.install(str(built.wheel))
    return environment


@pytest.fixture(scope="module")
def with_extras(environment: Environment, built: Built) -> Environment:
    """The same environment: tests that want none of the extras stand before those that use this."""
    environment.install(f"postroad[node] @ {built.wheel.as_uri()}", "pytest")
    return environment


def test_the_wheel_has_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    kept = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert names == {path.relative_to(PACKAGE.parent).as_posix() for path in kept}
    assert {
        "postroad/py.typed",
        "postroad/cli/project/app.py.txt",
        "postroad/dashboard/static/index.html",
    } <= names


def test_the_sdist_gives_the_same_wheel(built: Built, tmp_path: Path) -> None:
    build(ROOT, tmp_path, "--wheel")
    # The other one was made from the sdist.
    assert (tmp_path / built.wheel.name).read_bytes() == built.wheel.read_bytes()
    with tarfile.open(built.sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "Makefile", "docs", "src", "tests"} <= tops
    assert not {".ci", ".git", ".github", ".venv", "dist"} & tops


def test_what_is_published_of_the_package(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (it for it in archive.namelist() if it.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == set(PROJECT["project"]["optional-dependencies"])
    assert not extras & set(PROJECT["dependency-groups"])
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = page[page.index("## Extras") :]
    assert extras == set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE))
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert metadata.get_payload() == README


def test_extras_in_hints_exist() -> None:
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    extras = {name for text in texts for name in re.findall(r'MissingExtraError\(\s*"(.+?)"', text)}
    assert len(extras) > 5
    assert extras <= set(PROJECT["project"]["optional-dependencies"])


def test_the_core_alone(environment: Environment) -> None:
    *_, file, hints = environment.succeed(environment.place, "python", "-c", EVERYTHING).split()
    assert Path(file).is_relative_to(environment.place)
    assert int(hints) > 0
    environment.succeed(environment.place, "postroad", "new", "core")
    project = environment.directory("core")
    for extra, command in (
        ("dashboard", "postroad node start --set admin.bind=127.0.0.1:0"),
        ("pipeline", "postroad job run job.toml"),
        ("certs", "postroad certs init"),
    ):
        done = environment.attempt(project, *command.split())
        assert done.returncode == 1, command
        assert HINT.format(extra) in done.stderr.splitlines()[-1]
    with environment.running(
        project, " runs at 127.0.0.1:", "postroad", "node", "start", "--set", "admin.enabled=no"
    ):
        pass
    # An action, a durable message and a flow in a node without an API.
    environment.install("pytest")
    assert " passed" in environment.succeed(project, "python", "-m", "pytest", "-q")


def test_a_new_project(with_extras: Environment) -> None:
    with_extras.succeed(with_extras.place, "postroad", "new", "shop")
    shop = with_extras.directory("shop")
    with with_extras.running(shop, "  flows      restock", "postroad", "dev") as log:
        assert "http://127.0.0.1:" in log.read_text()
        call = ("postroad", "call")
        assert with_extras.succeed(shop, *call, "shop.order", "item=tea") == "1 tea ordered\n"
        message = '{"item":"tea","count":2}'
        with_extras.succeed(shop, "postroad", "queue", "post", "orders", message)
        with_extras.eventually(shop, "3", *call, "shop.sold", "item=tea")
        flow = with_extras.succeed(shop, *call, "shop.restock", "item=tea", "count=10").strip()
        with_extras.succeed(shop, "postroad", "flow", "signal", flow, "arrived", "9")
        with_extras.eventually(
            shop, ".*9 tea in stock, invoice for 10 tea.*", "postroad", "flow", "show", flow
        )


def test_the_first_program_of_the_readme(with_extras: Environment) -> None:
    program, console = re.findall(r"^```(?:python|console)\n(.*?)^```$", README, re.M | re.S)[:2]
    place = with_extras.directory("readme")
    (place / "app.py").write_text(program, encoding="utf-8")
    with with_extras.running(place, "  consumers  orders -> bill", "postroad", "dev"):
        for command, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE):
            parts = VARYING.split(" ".join(shown.split()))
            with_extras.eventually(place, ".+".join(map(re.escape, parts)), *command.split())
