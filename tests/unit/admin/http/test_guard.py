"""Names of hosts, and which of them lead to this machine alone."""

from postroad.admin.http.guard import own_hosts
from postroad.core.names import is_loopback


def test_loopback_hosts_are_this_machine_alone() -> None:
    for host in ("127.0.0.1", "127.5.5.5", "::1", "localhost"):
        assert is_loopback(host), host
        assert own_hosts(host) == frozenset({host, "localhost", "127.0.0.1", "::1"}), host
    for host in ("0.0.0.0", "::", "10.0.0.1", "node.example", "127.0.0.1.x"):
        assert not is_loopback(host), host
        assert own_hosts(host) is None, host
