"""Names of hosts, and which of them lead to this machine alone."""

from postroad.admin.http.guard import is_loopback, own_hosts
from tests.support.cases import each


@each("127.0.0.1", "127.5.5.5", "::1", "localhost")
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert own_hosts(host) == frozenset({host, "localhost", "127.0.0.1", "::1"})


@each("0.0.0.0", "::", "10.0.0.1", "node.example", "127.0.0.1.x")
def test_others(host: str) -> None:
    assert not is_loopback(host)
    assert own_hosts(host) is None
