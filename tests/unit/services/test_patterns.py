"""Patterns of event names; every row of the tables was tried with the original system."""

from postroad.services.patterns import matches
from tests.support.cases import each

LONG = "**a" * 60 + "b"


@each(
    ("user.created", "user.created"),
    ("user.*", "user.created user. user..x"),
    ("us*", "us user us.x"),
    ("*", "user x"),
    ("**", "user user.created a.b.c"),
    ("user.**", "user. user.created user.a.b"),
    ("user**", "user username.x"),
    ("*.created", "user.created .created userXcreated"),
    ("user.*.x", "user.a.x user..x userXaYx"),
    ("**.x", "a.x a.b.x .x abx"),
    ("a.?", "a.b aXb a.."),
    ("a?c", "abc a.c"),
    ("***", "a a.b"),
    ("a.*.**", "a.b. a.b.c.d"),
    ("$node.*", "$node.x"),
    ("$node.?", "$node.x"),
)
def test_names_that_fit(pattern: str, names: str) -> None:
    for name in names.split():
        assert matches(name, pattern), (name, pattern)


@each(
    ("user.created", "user user.created2 userXcreated"),
    ("user.*", "user user.a.b"),
    ("us*", "u usa.x"),
    ("*", "user.created"),
    ("user.**", "user username"),
    ("*.created", "a.b.created"),
    ("user.*.x", "user.a.b.x user.x"),
    ("**.x", "x a.y"),
    ("a.?", "a. a.bc"),
    ("a?c", "ac abbc"),
    ("$node.?", "xnode.x"),
)
def test_names_that_do_not_fit(pattern: str, names: str) -> None:
    for name in names.split():
        assert not matches(name, pattern), (name, pattern)


def test_pattern_takes_other_characters_literally_and_linear_time() -> None:
    # The original takes them for parts of a regular expression.
    assert matches("x(y)ab", "x(y)*?")
    assert not matches("xyab", "x(y)*?")
    assert not matches("a" * 10_000, LONG)
    assert matches("a" * 10_000 + "b", LONG)
