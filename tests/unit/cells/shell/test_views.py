"""Text for people."""

from postroad.cells.shell.views import (
    format_fields,
    format_milliseconds,
    format_names,
    format_table,
    one_line,
)


def test_tables_and_fields_are_aligned() -> None:
    assert (
        format_table(("NAME", "N"), [("a", 10), ("longer", None)])
        == "NAME    N\na       10\nlonger  -"
    )
    assert format_fields([("a", 1), ("long", ""), ("b", None)]) == "a:     1\nlong:\nb:     -"
    assert format_fields([]) == ""


def test_values_fit_on_a_line() -> None:
    assert one_line("a\n\tb \0c\x1b[2J") == "a b ?c?[2J"
    assert one_line("x" * 20, 10) == "xxxxxxx..."
    assert len(one_line("y" * 1_000)) == 300
    assert format_names([]) == "-"
    assert format_names(["a", "b"], 2) == "a, b"
    assert format_names(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert format_milliseconds(0.0015) == "1.50 ms"
    assert format_milliseconds(None) == "-"
