"""The document that describes the API."""

import json
from typing import Any

import pytest

from postroad.admin.http.openapi import make_document
from postroad.admin.operations import OPERATIONS
from tests.support.cases import each


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(json.dumps(make_document()))  # type: ignore[no-any-return]


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*(references(it) for it in value.values()))
    if isinstance(value, list):
        return set().union(*(references(it) for it in value))
    return set()


def test_document_has_every_operation_once_and_no_dangling_reference(
    document: dict[str, Any],
) -> None:
    for reference in references(document):
        target: Any = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
        assert target
    ids = [it["operationId"] for path in document["paths"].values() for it in path.values()]
    assert sorted(ids) == sorted([*OPERATIONS, "watch"])
    for path in document["paths"].values():
        for about in path.values():
            assert {"400", "401", "404", "503"} <= about["responses"].keys()
            assert ("415" in about["responses"]) == ("requestBody" in about)


@each(*OPERATIONS)
def test_parameters_and_words(name: str, document: dict[str, Any]) -> None:
    operation = OPERATIONS[name]
    [about] = document["paths"][f"/api/v1/{operation.noun}/{operation.verb}"].values()
    assert about["summary"] == operation.summary
    assert about["x-effect"] == operation.effect.value
    said = {it["name"]: it["required"] for it in about["parameters"] if it["name"] != "node"}
    wanted = {it.name: it.is_required for it in operation.parameters}
    if operation.is_read:
        assert said == wanted
    else:
        schema = about["requestBody"]["content"]["application/json"]["schema"]
        body = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        assert {it: it in body.get("required", []) for it in body["properties"]} == wanted
        assert said == {}
