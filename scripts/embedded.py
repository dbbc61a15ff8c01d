"""The embedded database: a real MongoDB wire-protocol server as its own process, for development, demo and tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from models.errors import SettingsError, Unavailable

FAST_SERVER = "secantusd-rs"
START_WITHIN = 30.0
HISTORY = ("--oplog-retention-seconds", "604800", "--oplog-max-entries", "2000000")


def command(port: int, data: Path, *, extra: tuple[str, ...] = ()) -> list[str]:
    """The server's command line: the faster engine where it is on PATH, else the one that comes as a wheel.

    Both keep every acknowledged write over a kill -9. Raises `SettingsError` when neither is installed.
    """
    place = ("--host", "127.0.0.1", "--port", str(port), "--storage-path", str(data), "--noop-heartbeat-seconds", "1")
    if not extra and (fast := shutil.which(FAST_SERVER)):
        return [fast, *place, "--sync-on-commit"]
    beside = Path(sys.executable).with_name("secantusd-py")
    server = str(beside) if beside.exists() else shutil.which("secantusd-py")
    if server is None:
        raise SettingsError("the embedded database is not installed: run `pip install 'paylatch[embedded]'`")
    history = () if "--oplog-retention-seconds" in extra else HISTORY
    return [server, *place, "--log-level", "WARNING", *history, *extra]


def uri(port: int) -> str:
    """The address of a server on this machine."""
    return f"mongodb://127.0.0.1:{port}/?directConnection=true"


def free_port() -> int:
    """A port that nobody listens on in this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def embedded_database(port: int, data: Path, *, extra: tuple[str, ...] = ()) -> AsyncIterator[str]:
    """Start a server, wait until it listens, yield its address, stop it on leaving.

    Raises `Unavailable` with the server's last words when it does not come up.
    """
    log = data.with_name(f"{data.name}.log")
    data.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as words:
        process = await asyncio.create_subprocess_exec(
            *command(port, data, extra=extra),
            stdout=words,
            stderr=words,
            start_new_session=True,
        )
    try:
        await _listening(process, port, log)
        yield uri(port)
    finally:
        await stop(process)


async def _listening(process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline and process.returncode is None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    msg = f"the embedded database did not come up on port {port}: {last[0]}"
    raise Unavailable(msg)


async def stop(process: asyncio.subprocess.Process, seconds: float = 15.0) -> int:
    """SIGTERM, then SIGKILL after `seconds`; the exit code."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, 9)
        return await process.wait()
