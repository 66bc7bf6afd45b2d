"""Writes what is generated into the pages."""

from . import write

if __name__ == "__main__":
    write()
