"""How a RabbitMQ server is run beside others: below one directory, on the loopback interface.

Used by the benchmarks and by the tests; each starts the processes in its own way.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

# Debian's command on the PATH changes the account and the directories; this one leaves them.
_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def find_rabbitmq() -> str | None:
    """The program that starts a server, if it is installed."""
    return str(_DEBIAN) if _DEBIAN.exists() else shutil.which("rabbitmq-server")


def epmd_command(port: int) -> list[str]:
    """A process that tells names of Erlang nodes; each server has its own, and needs it first."""
    return ["epmd", "-address", "127.0.0.1", "-port", str(port)]


def rabbitmq_environment(
    directory: Path, *, port: int, epmd_port: int, cluster_port: int
) -> dict[str, str]:
    """For both processes: everything below the directory; no plugins, no settings."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_CONFIG_FILE": str(directory / "no-config"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "no-environment"),
        "RABBITMQ_DIST_PORT": str(cluster_port),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "no-plugins"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_NODENAME": f"postroad-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false"
        ),
        # The broker takes the place of its start script, so that its process is the one we know.
        "RUNNING_UNDER_SYSTEMD": "true",
    }


def rabbitmq_url(port: int) -> str:
    """Of a server, for whoever is on the same machine."""
    return f"amqp://guest:guest@127.0.0.1:{port}/"
