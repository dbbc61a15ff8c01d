"""`python -m scripts`: the `paylatch` command, for when the script itself is not on PATH."""

from scripts.cli import main

if __name__ == "__main__":
    main()
