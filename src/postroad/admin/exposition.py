"""Numbers in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Exposition:
    """Metrics that are being gathered, each with what it means.

    Samples of one metric stand together whenever they were added, as the format demands.
    """

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def gauge(self, name: str, text: str, value: float, /, **labels: str) -> None:
        """Add something that goes up and down."""
        self._add(f"postroad_{name}", "gauge", text, value, labels)

    def counter(self, name: str, text: str, value: float, /, **labels: str) -> None:
        """Add something that only goes up, until the process ends."""
        self._add(f"postroad_{name}_total", "counter", text, value, labels)

    def _add(
        self, name: str, kind: str, text: str, value: float, labels: Mapping[str, str]
    ) -> None:
        told = ",".join(f'{it}="{said.translate(_ESCAPES)}"' for it, said in labels.items())
        family = self._families.get(name)
        if family is None:
            help_text = text.replace("\\", r"\\").replace("\n", r"\n")
            family = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            self._families[name] = family
        family.append(f"{name}{{{told}}} {_show(value)}" if told else f"{name} {_show(value)}")

    def take(self, others: Exposition) -> None:
        """Add the metrics of another, of which none has a name that is here already."""
        self._families |= others._families

    def render(self) -> str:
        """All of it, as text."""
        lines = [line for family in self._families.values() for line in family]
        return "".join(f"{line}\n" for line in lines)


def _show(value: float) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    return repr(value)
