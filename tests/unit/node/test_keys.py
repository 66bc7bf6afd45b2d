"""Settings by their dotted names."""

import pytest

from postroad.node.keys import HIDDEN, sections, settings_keys, without_passwords

KEYS = settings_keys()


def test_every_setting_says_what_it_means() -> None:
    assert [it.name for it in KEYS.values() if not it.meaning] == []


def test_every_table_says_what_it_is_about() -> None:
    assert [name for name, about in sections().items() if not about] == []


def test_variables_are_not_ambiguous() -> None:
    assert len({it.variable for it in KEYS.values()}) == len(KEYS)


def test_tables_within_tables_are_walked() -> None:
    key = KEYS["services.tuning.retry.delay_max_s"]
    assert key.variable == "POSTROAD_SERVICES_TUNING_RETRY_DELAY_MAX_S"
    assert (key.section, key.default, key.type_name) == ("services.tuning.retry", 1.0, "a number")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("admin.enabled", "true or false"),
        ("admin.remote", "one of off, read, change"),
        ("cells.role", "one of core, satellite"),
        ("cluster.contacts", "a list of texts"),
        ("cluster.properties", "a table"),
        ("limits.accepted_max", "a whole number"),
        ("node.layers", "a list of cluster, cells, mail, services, flows"),
        ("tls.key", "a text"),
    ],
)
def test_types_are_told_in_words(name: str, told: str) -> None:
    assert KEYS[name].type_name == told


def test_what_depends_on_the_machine_is_told_apart() -> None:
    assert [it.name for it in KEYS.values() if it.is_computed] == ["node.name"]


def test_what_a_table_needs_is_told_apart() -> None:
    required = [it.name for it in KEYS.values() if it.is_required]
    assert required == ["tls.certificate", "tls.key", "tls.trust"]
    assert KEYS["tls.is_mutual"].default is True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:pa:s@s@db/x", f"postgresql://ann:{HIDDEN}@db/x"),
        ("postgresql://ann@db/x?password=pass", f"postgresql://ann@db/x?password={HIDDEN}"),
        ("host=db password=pass", f"host=db password={HIDDEN}"),
        ("redis://:pass@127.0.0.1:6379", f"redis://:{HIDDEN}@127.0.0.1:6379"),
        ("nats://pass@127.0.0.1", f"nats://{HIDDEN}@127.0.0.1"),
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("one@two", "one@two"),
    ],
)
def test_passwords_are_hidden(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


def test_passwords_are_hidden_wherever_they_are() -> None:
    shown = KEYS["services.tuning.metadata"].show({"at": ["redis://:pass@db"], "size": 2})
    assert shown == {"at": [f"redis://:{HIDDEN}@db"], "size": 2}


def test_a_token_is_hidden_and_none_is_none() -> None:
    assert KEYS["admin.token"].show("0123456789abcdef") == HIDDEN
    assert KEYS["admin.token"].show(None) is None
