"""One database server per test worker: the embedded one, or any deployment named by PAYLATCH_TEST_MONGODB_URI."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.embedded import command, free_port, uri


@contextlib.contextmanager
def server(folder: Path, *, extra: tuple[str, ...] = ()) -> Iterator[str]:
    """Start an embedded server in `folder` and yield its address."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command(port, folder / "data", extra=extra), stdout=log, stderr=log)
    try:
        until_listening(port, process)
        yield uri(port)
    finally:
        process.kill()
        process.wait()


def until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Fails when the server ends, or does not come up in half a minute."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert process.poll() is None, "the embedded database ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError("the embedded database did not come up")


def configured() -> str | None:
    """A deployment to test against instead."""
    return os.environ.get("PAYLATCH_TEST_MONGODB_URI")
