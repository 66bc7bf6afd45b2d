"""Files that a configuration names are looked at before a start."""

from pathlib import Path

import pytest
import trustme

from postroad.node.checking import check_files
from postroad.node.settings import (
    AdminSettings,
    NodeConfig,
    NodeSettings,
    PipelineSettings,
    TlsSettings,
)
from tests.support.cases import each


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    root = trustme.CA()
    node = root.issue_cert("alpha")
    root.cert_pem.write_to_path(directory / "ca.pem")
    node.cert_chain_pems[0].write_to_path(directory / "alpha.pem")
    node.private_key_pem.write_to_path(directory / "alpha.key")
    return directory


def tls(directory: Path, trust: str = "ca.pem") -> TlsSettings:
    return TlsSettings(
        certificate=str(directory / "alpha.pem"),
        key=str(directory / "alpha.key"),
        ca=str(directory / trust),
    )


def test_certificates_between_nodes(certificates: Path) -> None:
    assert check_files(NodeConfig(tls=tls(certificates))) == []
    (problem,) = check_files(NodeConfig(tls=tls(certificates, "none.pem")))
    assert problem.startswith("tls: TLS ca")


def test_certificates_of_the_dashboard(certificates: Path) -> None:
    def problems(key: str, trust: str) -> list[str]:
        admin = AdminSettings(
            certificate=str(certificates / "alpha.pem"),
            key=str(certificates / key),
            client_trust=str(certificates / trust),
        )
        return check_files(NodeConfig(admin=admin))

    assert problems("alpha.key", "ca.pem") == []
    for key, trust in (("ca.pem", "ca.pem"), ("alpha.key", "none.pem")):
        (problem,) = problems(key, trust)
        assert problem.startswith("admin: the certificates cannot be used:")


@each(
    ("x = 1\n", []),
    ("x = 1\ndef f(:\n", ["node.app: {path}:2: invalid syntax"]),
    ("x = '\0'\n", ["node.app: {path}"]),
)
def test_program_is_read_and_not_run(text: str, told: list[str], tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(text + "raise SystemExit\n" if not told else text)
    problems = check_files(NodeConfig(node=NodeSettings(app=str(path))))
    assert len(problems) == len(told)
    for problem, start in zip(problems, told, strict=True):
        assert problem.startswith(start.format(path=path))


def test_missing_files_are_problems_and_modules_are_not_looked_for(tmp_path: Path) -> None:
    config = NodeConfig(
        node=NodeSettings(app=str(tmp_path / "none.py")),
        pipeline=PipelineSettings(jobs=(str(tmp_path / "none.toml"), __file__)),
    )
    assert check_files(config) == [
        f"node.app: {tmp_path}/none.py cannot be read: No such file or directory",
        f"pipeline.jobs: there is no file {tmp_path}/none.toml",
    ]
    assert check_files(NodeConfig(node=NodeSettings(app="shop.app"))) == []
    assert check_files(NodeConfig()) == []
