from __future__ import annotations

import os
import sys
from pathlib import Path

from scripts.embedded import command, uri
from scripts.options import Port


def run_database(*, port: Port = 27017, data: Path = Path("secantus-data")) -> None:
    """Run the embedded database in the foreground: a one-node replica set for development and tests.

    Example: `paylatch database --port 27017 --data ./data`

    Parameters
    ----------
    port
        TCP port on 127.0.0.1.
    data
        Folder of the data files; made when it is missing.
    """
    data.mkdir(parents=True, exist_ok=True)
    line = command(port, data)
    sys.stderr.write(f"PAYLATCH_MONGODB__URI={uri(port)}\n")
    sys.stderr.flush()
    os.execv(line[0], line)  # noqa: S606 - this process becomes the server, so signals reach it
