"""``python -m postroad`` is the `postroad` command."""

from postroad.cli.main import main

if __name__ == "__main__":
    main()
