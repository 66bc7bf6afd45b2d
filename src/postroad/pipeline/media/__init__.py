"""Where segments come from and where they go."""

from __future__ import annotations

from .lines import LinesInput, LinesOutput
from .medium import (
    Chunk,
    InputMedium,
    OutputMedium,
    Place,
    Slice,
    Staged,
    Stager,
    Undecodable,
    Unwritable,
)
from .registry import make_input, make_output
from .seq import SeqInput, SeqOutput

__all__ = [
    "Chunk",
    "InputMedium",
    "LinesInput",
    "LinesOutput",
    "OutputMedium",
    "Place",
    "SeqInput",
    "SeqOutput",
    "Slice",
    "Staged",
    "Stager",
    "Undecodable",
    "Unwritable",
    "make_input",
    "make_output",
]
