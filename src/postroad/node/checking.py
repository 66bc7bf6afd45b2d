"""Looks at the files that a configuration names, before anything is started."""

from __future__ import annotations

import ssl
from pathlib import Path

from postroad.core.errors import ConfigError

from .settings import AdminSettings, NodeConfig


def check_files(config: NodeConfig) -> list[str]:
    """What is wrong with the certificates, the program and the jobs of a node."""
    problems = []
    if config.tls is not None:
        try:
            config.tls.config.server_context()
        except ConfigError as error:
            problems.append(f"tls: {error}")
    problems += _check_admin(config.admin)
    if config.node.app is not None and config.node.app.endswith(".py"):
        problems += _check_program(Path(config.node.app))
    problems += [
        f"pipeline.jobs: there is no file {it.path}"
        for it in config.pipeline.job_settings
        if not Path(it.path).is_file()
    ]
    return problems


def _check_admin(settings: AdminSettings) -> list[str]:
    if settings.certificate is None or settings.key is None:
        return []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.certificate, settings.key)
        if settings.client_trust is not None:
            context.load_verify_locations(settings.client_trust)
    except (OSError, ssl.SSLError) as error:
        return [f"admin: the certificates cannot be used: {error}"]
    return []


def _check_program(path: Path) -> list[str]:
    try:
        compile(path.read_bytes(), path, "exec", dont_inherit=True)
    except OSError as error:
        return [f"node.app: {path} cannot be read: {error.strerror}"]
    except (SyntaxError, ValueError) as error:
        return [f"node.app: {tell_syntax_error(path, error)}"]
    return []


def tell_syntax_error(path: Path | str, error: SyntaxError | ValueError) -> str:
    """File, line and message."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno}: {error.msg}"
    return f"{path}: {error}"
