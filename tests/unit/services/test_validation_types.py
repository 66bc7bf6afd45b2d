"""Params checked by a type."""

from typing import Annotated

import msgspec

from postroad.services.validation import compile_type
from tests.support.cases import each


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
def test_the_first_problem_is_told(params: object, type: str, field: str | None) -> None:
    value, (problem,) = compile_type(Post)(params)
    assert value is params
    assert (problem.type, problem.field) == (type, field)


def test_the_words_of_a_problem() -> None:
    (lacks,) = compile_type(Post)({}).problems
    assert lacks.message == "The 'id' field is required."
    (wrong,) = compile_type(Post)({"id": "x"}).problems
    assert wrong.to_wire(action="a") == {
        "type": "number",
        "message": "The 'id' field: Expected `int`, got `str`.",
        "field": "id",
        "action": "a",
    }
