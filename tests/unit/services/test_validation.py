"""Schemas of params; the problems are those that the original system tells."""

import re
from typing import Annotated, Any

import msgspec
import pytest

from postroad.core.errors import ConfigError
from postroad.services.params_schema import js_to_number, read_schema, read_shorthand
from postroad.services.validation import Checked, compile_params, compile_type
from tests.support.cases import each


def check(schema: Any, params: Any) -> Checked:
    return compile_params(schema)(params)


def problems(schema: Any, params: Any) -> list[dict[str, Any]]:
    return [problem.to_wire() for problem in check(schema, params).problems]


def types(schema: Any, params: Any) -> list[str]:
    return [problem.type for problem in check(schema, params).problems]


def told(type: str, message: str, field: str, **facts: Any) -> dict[str, Any]:
    return {"type": type, "message": message, "field": field, **facts}


def test_every_problem_is_told_with_the_path_of_its_field() -> None:
    age = {"type": "number", "integer": True, "positive": True}
    schema: dict[str, Any] = {"name": "string|min:3", "age": age, "on": "boolean"}
    short = "The 'name' field length must be greater than or equal to 3 characters long."
    assert problems(schema, {"name": "ab", "age": -1.5, "on": "yes"}) == [
        told("stringMin", short, "name", expected=3, actual=2),
        told("numberInteger", "The 'age' field must be an integer.", "age", actual=-1.5),
        told("numberPositive", "The 'age' field must be a positive number.", "age", actual=-1.5),
        told("boolean", "The 'on' field must be a boolean.", "on", actual="yes"),
    ]
    user = {"$$type": "object", "first-name": "string", "mail": "email"}
    name, mail = "user['first-name']", "user.mail"
    params = {"user": {"mail": "x"}, "tags": ["a", 1, None]}
    assert problems({"user": user, "tags": "string[]"}, params) == [
        told("required", f"The '{name}' field is required.", name),
        told("email", f"The '{mail}' field must be a valid e-mail.", mail, actual="x"),
        told("string", "The 'tags[1]' field must be a string.", "tags[1]", actual=1),
        told("required", "The 'tags' field is required.", "tags", actual=None),
    ]


def test_one_of_several_rules_must_hold() -> None:
    schema = {"kind": {"type": "enum", "values": ["a", 2]}, "id": ["number", "uuid"], "n": "any"}
    unlike = "The 'kind' field value 'a, 2' does not match any of the allowed values."
    assert problems(schema, {"kind": "b", "id": "x", "n": None}) == [
        told("enumValue", unlike, "kind", expected="a, 2", actual="b"),
        told("number", "The 'id' field must be a number.", "id", actual="x"),
        told("uuid", "The 'id' field must be a valid UUID.", "id", actual="x"),
        told("required", "The 'n' field is required.", "n", actual=None),
    ]
    assert types(schema, {"kind": 2, "id": 7, "n": 0}) == []


def test_fields_that_are_not_known() -> None:
    assert problems({"a": "any|optional", "$$strict": True}, {"b": 1, "c": 2}) == [
        {
            "type": "objectStrict",
            "message": "The object '' contains forbidden keys: 'b, c'.",
            "expected": "a",
            "actual": "b, c",
        }
    ]
    params = {"a": 1, "b": 2}
    assert check({"a": "number", "$$strict": "remove"}, params) == ({"a": 1}, ())
    assert check({"a": "number"}, params) == (params, ())
    assert check({"a": "number", "b": "number", "$$strict": True}, params) == (params, ())
    kept, refused = check({"a": "string", "$$strict": "remove"}, params)
    assert (kept, len(refused)) == (params, 1)


def test_sizes_and_contents() -> None:
    schema = {
        "a": {"type": "object", "props": {"b": "string"}, "strict": True, "minProps": 2},
        "u": {"type": "array", "unique": True, "min": 5, "enum": [1, 2]},
    }
    found = problems(schema, {"a": {"c": 1}, "u": [1, 1, 3]})
    sizes = ["required", "objectStrict", "objectMinProps", "arrayMin", "arrayUnique", "arrayEnum"]
    assert [problem["type"] for problem in found] == sizes
    twice = "The '1,1,3' value in 'u' field does not unique the '1' values."
    assert found[4] == told("arrayUnique", twice, "u", expected=[1], actual=[1, 1, 3])
    other = "The '3' value in 'u' field does not match any of the '1, 2' values."
    assert found[5]["message"] == other


def test_own_messages_labels_and_facts() -> None:
    messages = {"stringMin": "{field} {actual}<{expected}"}
    rule = {"type": "string", "min": 3, "label": "Name", "messages": messages}
    (problem,) = check({"a": rule}, {"a": "x"}).problems
    facts = {"label": "Name", "nodeID": "n1", "action": "posts.find"}
    wire = problem.to_wire(nodeID="n1", action="posts.find")
    assert wire == told("stringMin", "Name 1<3", "a", expected=3, actual=1, **facts)


# Single rules: what fits, and which problem is told of what does not.

UUID4 = "123e4567-e89b-42d3-a456-426614174000"


@each(
    ("string", ["", "a"], [(1, "string"), (None, "required"), ([], "string")]),
    ("string|no-empty", ["a"], [("", "stringEmpty")]),
    ("string|empty|min:2", ["", "ab"], [("a", "stringMin")]),
    ("string|max:2", ["ab", "é"], [("abc", "stringMax"), ("😀a", "stringMax")]),
    ("string|length:2", ["ab", "😀"], [("a", "stringLength")]),
    ("string|contains:b", ["abc"], [("ac", "stringContains")]),
    ("string|numeric", ["-1.5", "07"], [("1.", "stringNumeric"), ("", "stringNumeric")]),
    ("string|alpha", ["aB"], [("a1", "stringAlpha"), ("ab\n", "stringAlpha")]),
    ("string|alphanum", ["a1"], [("a_", "stringAlphanum")]),
    ("string|alphadash", ["a_-1"], [("a b", "stringAlphadash")]),
    ("string|hex", ["0aF1"], [("0aF", "stringHex"), ("zz", "stringHex")]),
    ("string|singleLine", ["a b"], [("a\nb", "stringSingleLine")]),
    ("string|base64", ["YWI=", ""], [("YWI", "stringBase64")]),
    ({"type": "string", "enum": ["a", "b"]}, ["a"], [("c", "stringEnum")]),
    ({"type": "string", "pattern": "^a.c$"}, ["abc"], [("xabc", "stringPattern")]),
    ({"type": "string", "pattern": "B", "patternFlags": "i"}, ["b"], [("c", "stringPattern")]),
    ("number", [1, 1.5], [("1", "number"), (True, "number"), (float("nan"), "number")]),
    ("number|min:2|max:3", [2, 3], [(1, "numberMin"), (3.5, "numberMax")]),
    ("number|equal:2", [2, 2.0], [(3, "numberEqual")]),
    ("number|notEqual:2", [3], [(2, "numberNotEqual")]),
    ("number|integer", [2, 2.0], [(2.5, "numberInteger")]),
    ("number|negative", [-1], [(0, "numberNegative")]),
    ("number|positive", [1], [(0, "numberPositive")]),
    ("boolean", [True, False], [(1, "boolean"), ("true", "boolean")]),
    ("array", [[], (1,)], [("a", "array"), ({}, "array")]),
    ("array|no-empty", [[1]], [([], "arrayEmpty")]),
    ("array|max:1", [[1]], [([1, 2], "arrayMax")]),
    ("array|length:1", [[1]], [([], "arrayLength")]),
    ("array|contains:1", [[2, 1]], [([True], "arrayContains")]),
    ("array|unique", [[1, True, "1", {}, {}]], [([{}, 1, 1.0], "arrayUnique")]),
    ("object", [{}, {"a": 1}], [([], "object"), ("a", "object")]),
    ("object|maxProps:1", [{"a": 1}], [({"a": 1, "b": 2}, "objectMaxProps")]),
    ({"type": "enum", "values": [1, True]}, [1, True, 1.0], [(False, "enumValue")]),
    ("email", ["a@b.co"], [("a@b", "email"), ("", "emailEmpty"), (1, "string")]),
    ("email|mode:precise", ["a.b@c.org"], [("a@b.c", "email"), ("a..b@c.org", "email")]),
    (
        "email|empty|min:7|max:8",
        ["", "a@bc.de"],
        [("a@b.co", "emailMin"), ("aa@bbb.cc", "emailMax")],
    ),
    ("url", ["http://a", "https://a.b/c"], [("ftp://a", "url"), ("", "urlEmpty"), (1, "string")]),
    ("url|empty", [""], [("x", "url")]),
    (
        "uuid",
        [UUID4, UUID4.upper()],
        [("x", "uuid"), (1, "string"), (UUID4.replace("a", "c"), "uuid")],
    ),
    ("uuid|version:4", [UUID4], [(UUID4.replace("42d3", "12d3"), "uuidVersion")]),
    ("uuid", ["0" * 8 + "-0000-0000-0000-" + "0" * 12], [("0" * 8, "uuid")]),
    ({"type": "equal", "value": 2}, [2, "2"], [(3, "equalValue"), ([2], "equalValue")]),
    ({"type": "equal", "value": 2, "strict": True}, [2], [("2", "equalValue")]),
    ("forbidden", [None], [(1, "forbidden")]),
    ("any", [0, "", []], [(None, "required")]),
    ("any|optional", [None, 1], []),
    ("number|nullable", [None, 1], []),
    (["number|optional", "string|optional"], [None, 1, "a"], []),
    (["number|nullable", "string"], [1], [(None, "required")]),
    ({"type": "multi", "rules": ["number", "string"], "optional": True}, [None], []),
)
def test_rule(rule: Any, good: list[Any], bad: list[tuple[Any, str]]) -> None:
    for value in good:
        assert types({"a": rule}, {"a": value}) == [], value
    for value, type in bad:
        assert types({"a": rule}, {"a": value}) == [type], value


@each(
    ("@@.x", False),
    ("@a@b.c", True),
    ("a@b@c.d", True),
    ("a@.", False),
    ("a@..", False),
    ("a@.b", False),
    ("a@..b", True),
    ("a.b@c", False),
    ("a@b.c.", True),
    ("a b@c.d", False),
    ("@." * 100_000 + " ", False),
)
def test_mail_addresses_are_judged_as_in_the_original_but_soon(text: str, fits: bool) -> None:
    assert (types({"a": "email"}, {"a": text}) == []) is fits


def test_values_are_compared_and_converted() -> None:
    assert types({"a": "number"}, {"a": 10**400}) == []
    schema = {"a": {"type": "string", "pattern": re.compile("^b", re.IGNORECASE)}}
    assert types(schema, {"a": "B"}) == []
    assert problems(schema, {"a": "c"})[0]["expected"] == "/^b/"
    assert types({"a": "number|nullable"}, {}) == ["required"]
    assert problems({"a": "number"}, {})[0].get("actual", "not there") == "not there"
    assert check({"a": "number|optional"}, {}) == ({}, ())
    assert types({"a": "number"}, None) == ["required"]
    equal = {"a": "string", "b": {"type": "equal", "field": "a"}}
    assert types(equal, {"a": "x", "b": "x"}) == []
    assert types(equal, {"a": "x", "b": "y"}) == ["equalField"]
    trimmed = {**equal, "a": "string|trim"}
    assert types(trimmed, {"a": " x ", "b": "x"}) == []
    for word in ("x", "1_0", "inf", "nan", "Infinity", "0xz"):
        assert js_to_number(word) != js_to_number(word), word
        assert types({"a": "number|convert"}, {"a": word}) == ["number"], word
        assert types({"a": "number|convert"}, {"a": ["1"]}) == ["number"], word
        assert types({"a": "boolean|convert"}, {"a": word}) == ["boolean"], word


@each(
    ("string|trim", " a ", "a"),
    ("string|trimLeft|uppercase", " a ", "A "),
    ("string|trimRight|lowercase", " A ", " a"),
    ({"type": "string", "padStart": 3, "padChar": "0"}, "7", "007"),
    ("string|padEnd:3", "7", "7  "),
    ("string|convert", 1.0, "1"),
    ("string|convert", True, "true"),
    ("number|convert", "12", 12),
    ("number|convert", " 1.5 ", 1.5),
    ("number|convert", "", 0),
    ("number|convert", "0x10", 16),
    ("number|convert", True, 1),
    ("boolean|convert", "on", True),
    ("boolean|convert", 0, False),
    ("boolean|convert", "false", False),
    ("array|convert", "a", ["a"]),
    ("number[]|convert", 1, [1]),
    ({"type": "array", "items": "string|trim"}, ["a ", "b"], ["a", "b"]),
    ({"type": "object", "props": {"b": "number|convert"}}, {"b": "1", "c": 2}, {"b": 1, "c": 2}),
    ("email|normalize", " A@B.co ", "a@b.co"),
    ("number|default:5", None, 5),
    ("number|default:5|nullable", None, None),
    (["number|convert", "string"], "12", 12),
    (["number|convert", "string"], "x", "x"),
    ({"type": "array", "items": {"type": "forbidden", "remove": True}}, [1], [None]),
)
def test_values_are_changed_in_a_copy(rule: Any, before: Any, after: Any) -> None:
    params = {"a": before}
    value, refused = check({"a": rule}, params)
    assert not refused
    assert value == {"a": after}
    assert type(value["a"]) is type(after)
    assert params == {"a": before}


def test_params_are_changed_or_given_back_themselves() -> None:
    fresh: list[int] = []
    schema = {
        "a": "number|default:5",
        "b": {"type": "array", "default": fresh},
        "c": {"type": "any", "default": dict},
    }
    value, _ = check(schema, {})
    assert value == {"a": 5, "b": [], "c": {}}
    assert value["b"] is not fresh
    assert check({"a": {"type": "forbidden", "remove": True}}, {"a": 1, "b": 2}) == ({"b": 2}, ())
    params = {"a": [1, {"b": "x"}]}
    schema = {"a": {"type": "array", "items": ["number", {"$$type": "object", "b": "string"}]}}
    assert check(schema, params).value is params
    assert check({"$$root": True, "type": "number"}, 3) == (3, ())
    assert types({"$$root": True, "type": "number"}, "3") == ["number"]
    assert types([{"type": "object", "props": {"a": "number"}}, {"type": "array"}], []) == []
    rule: dict[str, Any] = {"type": "array"}
    rule["items"] = rule
    with pytest.raises(ConfigError, match="nested"):
        read_schema({"a": rule})


def test_shorthand() -> None:
    text = " string | optional|min: 3|no-empty|default:a:b|trim:true|max:1e2 "
    assert read_shorthand(text) == {
        "type": "string",
        "optional": True,
        "min": 3,
        "empty": False,
        "default": "a:b",
        "trim": True,
        "max": 100,
    }
    assert read_shorthand("number[]|max:2") == {"type": "array", "items": "number", "max": 2}


@each(
    ({"a": "text"}, "a: type 'text' is none of any, array"),
    ({"a": {"b": {"c": "string"}}}, r"a: .* needs a \$\$type"),
    ({"a": {"$$type": "object", "b": 3}}, "a.b: 3 is no rule"),
    ({"a": []}, "no rule"),
    ({"a": {"type": "multi"}}, "list of rules"),
    ({"a": {"type": "array", "items": "x"}}, r"a\[\]: type 'x'"),
    ({"a": {"type": "enum"}}, "list of values"),
    ({"a": {"type": "string", "pattern": "("}}, "pattern"),
    ({"a": {"type": "string", "pattern": "a", "patternFlags": "q"}}, "pattern"),
    ({"a": {"type": "string", "padChar": "ab"}}, "padChar"),
)
def test_mistakes_in_schemas_are_named(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compile_params(schema)


class Author(msgspec.Struct):
    name: str


class Post(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    title: Annotated[str, msgspec.Meta(min_length=2)] = "untitled"
    tags: list[str] = []
    author: Author | None = None
    extra: dict[str, float] = {}


def test_params_become_an_object_with_numbers_of_texts() -> None:
    value, problems = compile_type(Post)({"id": 1, "author": {"name": "x"}})
    assert value == Post(1, author=Author("x"))
    assert problems == ()
    assert compile_type(Post, is_strict=False)({"id": "7"}).value == Post(7)


@each(
    (None, "required", "id"),
    ({"id": "1"}, "number", "id"),
    ({"id": 1, "title": 2}, "string", "title"),
    ({"id": 1, "title": "x"}, "string", "title"),
    ({"id": 1, "tags": 2}, "array", "tags"),
    ({"id": 1, "tags": ["a", 2]}, "string", "tags[1]"),
    ({"id": 1, "author": {}}, "required", "author.name"),
    ({"id": 1, "author": 3}, "object", "author"),
    ({"id": 1, "extra": {"a": "b"}}, "number", "extra[...]"),
    ({"id": 1, "other": 2}, "invalid", None),
    ([], "object", None),
)
def test_first_problem_is_told(params: object, type: str, field: str | None) -> None:
    value, (problem,) = compile_type(Post)(params)
    assert value is params
    assert (problem.type, problem.field) == (type, field)


def test_words_of_a_problem() -> None:
    (lacks,) = compile_type(Post)({}).problems
    assert lacks.message == "The 'id' field is required."
    (wrong,) = compile_type(Post)({"id": "x"}).problems
    assert wrong.to_wire(action="a") == {
        "type": "number",
        "message": "The 'id' field: Expected `int`, got `str`.",
        "field": "id",
        "action": "a",
    }
