"""Settings by their dotted names."""

from postroad.node.keys import HIDDEN, sections, settings_keys, without_passwords
from tests.support.cases import each

KEYS = settings_keys()


def test_settings_are_explained_and_secrets_hidden() -> None:
    assert [it.name for it in KEYS.values() if not it.meaning] == []
    assert [name for name, about in sections().items() if not about] == []
    assert len({it.variable for it in KEYS.values()}) == len(KEYS)
    key = KEYS["services.tuning.retry.delay_max_s"]
    assert key.variable == "POSTROAD_SERVICES_TUNING_RETRY_DELAY_MAX_S"
    assert (key.section, key.default, key.type_name) == ("services.tuning.retry", 1.0, "a number")
    assert [it.name for it in KEYS.values() if it.is_computed] == ["node.name"]
    required = [it.name for it in KEYS.values() if it.is_required]
    assert required == ["tls.certificate", "tls.key", "tls.ca"]
    assert KEYS["tls.mutual"].default is True
    shown = KEYS["services.tuning.metadata"].show({"at": ["redis://:pass@db"], "size": 2})
    assert shown == {"at": [f"redis://:{HIDDEN}@db"], "size": 2}
    assert KEYS["admin.token"].show("0123456789abcdef") == HIDDEN
    assert KEYS["admin.token"].show(None) is None


@each(
    ("admin.enabled", "true or false"),
    ("admin.remote", "one of off, read, change"),
    ("cells.role", "one of core, satellite"),
    ("cluster.seeds", "a list of texts"),
    ("cluster.properties", "a table"),
    ("limits.accepted_connections_max", "a whole number"),
    ("node.layers", "a list of cluster, cells, queues, services, flows"),
    ("tls.key", "a text"),
)
def test_types_are_told_in_words(name: str, told: str) -> None:
    assert KEYS[name].type_name == told


@each(
    ("postgresql://ann:pa:s@s@db/x", f"postgresql://ann:{HIDDEN}@db/x"),
    ("postgresql://ann@db/x?password=pass", f"postgresql://ann@db/x?password={HIDDEN}"),
    ("host=db password=pass", f"host=db password={HIDDEN}"),
    ("redis://:pass@127.0.0.1:6379", f"redis://:{HIDDEN}@127.0.0.1:6379"),
    ("nats://pass@127.0.0.1", f"nats://{HIDDEN}@127.0.0.1"),
    ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
    ("one@two", "one@two"),
)
def test_passwords_are_hidden(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
