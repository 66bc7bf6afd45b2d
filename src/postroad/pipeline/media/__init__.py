"""Where segments come from and where they go."""

from __future__ import annotations

from .files import LinesInput, LinesOutput
from .medium import InputMedium, Item, OutputMedium, Place, Slice, Undecodable, Unwritable, Written
from .registry import make_input, make_output
from .seq import SeqInput, SeqOutput

__all__ = [
    "InputMedium",
    "Item",
    "LinesInput",
    "LinesOutput",
    "OutputMedium",
    "Place",
    "SeqInput",
    "SeqOutput",
    "Slice",
    "Undecodable",
    "Unwritable",
    "Written",
    "make_input",
    "make_output",
]
