"""The settings of a broker: what is refused, and that it is said what would do."""

from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.services.broker import Broker
from postroad.services.config import BrokerConfig
from tests.support.cases import each, naming


@each(
    ({"request_timeout": 5}, "no setting 'request_timeout'; did you mean 'request_timeout_s'"),
    ({"nonsense": 5}, "no setting 'nonsense'$"),
    ({"request_timeout_s": -1}, "request_timeout_s=-1 must be"),
    ({"request_timeout_s": "5"}, "request_timeout_s='5' must be"),
    ({"request_timeout_s": float("nan")}, "request_timeout_s=nan must be"),
    ({"request_timeout_s": True}, "request_timeout_s=True must be"),
    ({"pending_max": 0}, "pending_max=0 must be at least 1"),
    ({"serving_max": None}, "serving_max=None must be at least 1"),
    ({"stop_timeout_s": 0}, "stop_timeout_s must be more than 0"),
    ({"heartbeat_interval_s": 0}, "heartbeat_interval_s=0 must be more than 0"),
    ({"heartbeat_timeout_s": 10}, "heartbeat_timeout_s=10 must be more than"),
    ({"retry": {"retries": 5}}, "retry must be a RetryPolicy"),
    ({"breaker": True}, "breaker must be a BreakerConfig"),
    ({"serializer": "YAML"}, "serializer 'YAML' is not known; known are CBOR, JSON, MsgPack"),
    ({"strategy": "Astrology"}, "strategy 'Astrology' is none of"),
    ({"namespace": "two words"}, "namespace: 'two words' contains a space"),
)
def test_settings_that_make_no_sense(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Broker("near", **settings)


def test_settings_override_the_config_and_defaults() -> None:
    config = BrokerConfig(namespace="test", request_timeout_s=1)
    broker = Broker("near", config=config, request_timeout_s=2)
    assert (broker.config.namespace, broker.config.request_timeout_s) == ("test", 2)
    assert config.request_timeout_s == 1
    assert Broker().node_id
    assert "stopped" in repr(Broker("near"))
    with pytest.raises(ConfigError, match="no transporter 'pigeon'"):
        Broker("near", transporter="pigeon://loft")
    for node_id in ("with space", "x" * 256, "line\nbreak"):
        with naming(node_id), pytest.raises(ConfigError, match="node: "):
            Broker(node_id)
