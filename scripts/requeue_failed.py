"""`python -m scripts.requeue_failed [options]`: the old name of `paylatch events requeue`, with the same options."""

from __future__ import annotations

import sys

from scripts.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["events", "requeue"]
    main()
