"""Parts of the documentation that are made from the code; `python -m docs._generate` renews them.

The results are committed, so that the pages can be read without building anything. A test fails
when they no longer follow from the code.
"""

from .pages import generated, outdated, write

__all__ = ["generated", "outdated", "write"]
