"""The public surface: what `from postroad import ...` promises."""

from importlib.metadata import version

import pytest

import postroad
from postroad import services
from postroad.durable import DurableQueues
from postroad.flows import FlowService

PUBLIC = [
    "App",
    "Cell",
    "ConfigError",
    "Context",
    "FlowContext",
    "INJECTED",
    "Message",
    "Node",
    "NodeConfig",
    "PostroadError",
    "Queue",
    "Reject",
    "RetryPolicy",
    "Service",
    "SyncClient",
    "SyncFlowContext",
    "SyncTransaction",
    "Transaction",
    "UsageError",
    "__version__",
    "action",
    "consumer",
    "current_node",
    "errors",
    "event",
    "flow",
    "responder",
    "run",
]


def test_public_names_are_fixed() -> None:
    assert sorted(postroad.__all__) == PUBLIC


def test_public_names_exist() -> None:
    assert [name for name in PUBLIC if not hasattr(postroad, name)] == []


def test_version_is_the_one_that_was_built() -> None:
    assert postroad.__version__ == version("postroad")


SERVICES = [
    *("ActionInfo", "BreakerConfig", "Broker", "BrokerConfig", "BrokerDisconnectedError"),
    *("BrokerOptionsError", "BulkheadConfig", "Cache", "CacheOptions", "CacheStore"),
    *("CallOptions", "Context", "EventInfo", "EventNotHandledError"),
    *("GracefulStopTimeoutError", "Handler", "IncomingStream", "InvalidPacketDataError"),
    *("MaxCallLevelError", "MemoryHub", "MemoryStore", "MemoryTransporter", "Middleware"),
    *("MoleculerClientError", "MoleculerError", "MoleculerRetryableError"),
    *("MoleculerServerError", "NodeInfo", "NodeRecord", "Objects", "PingResult"),
    *("ProtocolVersionMismatchError", "QueueIsFullError", "RedisStore", "Registry"),
    *("RemoteError", "RequestRejectedError", "RequestSkippedError", "RequestTimeoutError"),
    *("RetryPolicy", "Service", "ServiceInfo", "ServiceNotAvailableError"),
    *("ServiceNotFoundError", "ServiceSchemaError", "Transporter", "UnsendablePacket"),
    *("ValidationError", "Visibility", "action", "asyncapi_document", "event"),
    "make_transporter",
]


def test_public_names_of_services_are_fixed() -> None:
    assert sorted(services.__all__) == SERVICES


def test_public_names_of_services_exist() -> None:
    assert [name for name in SERVICES if not hasattr(services, name)] == []


@pytest.mark.parametrize("service", [FlowService, DurableQueues])
def test_services_keep_what_operators_do_in_their_facets(service: type) -> None:
    public = [name for name in dir(service) if not name.startswith("_")]
    assert len(public) <= 13, public
