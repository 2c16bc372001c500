"""`python -m leco` is the `leco` command."""

from leco.cli.main import main

if __name__ == "__main__":
    main()
