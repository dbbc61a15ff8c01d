"""The whole stack as real processes on this machine: database, webhook, watcher. The demo, `run` and tests start it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from models.database import database, require_replica_set
from models.errors import Unavailable
from models.indexes import create_indexes
from models.settings import Settings, child_environment
from scripts.embedded import embedded_database, free_port, stop

READY_WITHIN = 30.0
SECRETS = {"new": "demo-webhook-secret-new", "old": "demo-webhook-secret-old"}
KEY_SECRET = "demo-key-secret"  # noqa: S105 - of a shop that does not exist
LISTENING = {"serve": "webhook.listening", "watch": "watcher.listening"}


@dataclass
class Daemon:
    """One of the two processes. Its log is a file of JSON lines, in which it says which ports it got."""

    command: str
    process: asyncio.subprocess.Process
    log: Path
    offset: int
    ports: dict[str, Any] = field(default_factory=dict)

    def lines(self) -> list[dict[str, Any]]:
        """What this process has logged so far."""
        with self.log.open("rb") as log:
            log.seek(self.offset)
            return [orjson.loads(line) for line in log if line.startswith(b"{") and line.endswith(b"}\n")]

    async def listening(self) -> None:
        """Wait until it has announced its ports. Raises `Unavailable` with its last words when it ends instead."""
        deadline = time.monotonic() + READY_WITHIN
        while time.monotonic() < deadline:
            if said := [line for line in self.lines() if line["event"] == LISTENING[self.command]]:
                self.ports = said[0]
                return
            if self.process.returncode is not None:
                break
            await asyncio.sleep(0.02)
        last = self.log.read_bytes()[self.offset :].decode(errors="replace").strip().splitlines()[-1:]
        msg = f"`paylatch {self.command}` did not come up: {(last or ['it said nothing'])[0]}"
        raise Unavailable(msg)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


@dataclass
class Stack:
    """Starts daemons on one database; each may be started, killed and started again."""

    folder: Path
    uri: str
    environment: dict[str, str]
    daemons: list[Daemon] = field(default_factory=list)

    async def start(self, command: str, **more: str) -> Daemon:
        """`serve` or `watch`, up and listening; `more` is added to its environment."""
        daemon = await self.launch(command, **more)
        await daemon.listening()
        return daemon

    async def launch(self, command: str, **more: str) -> Daemon:
        """Start it and do not wait."""
        log = self.folder / f"{command}.log"
        with log.open("ab") as words:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "scripts", command),
                cwd=self.folder,
                env={**self.environment, **more},
                stdout=words,
                stderr=words,
            )
            daemon = Daemon(command, process, log, words.tell())
        self.daemons.append(daemon)
        return daemon

    async def stop(self) -> None:
        """End everything that still runs, the newest first."""
        for daemon in reversed(self.daemons):
            if daemon.process.returncode is None:
                await stop(daemon.process)


def environment(uri: str, mail_port: int, **more: str) -> dict[str, str]:
    """The settings of a local stack: free ports, our own secrets, mail to the local sink."""
    own = {
        "PAYLATCH_MONGODB__URI": uri,
        "PAYLATCH_RAZORPAY__WEBHOOK_SECRETS": json.dumps(SECRETS),
        "PAYLATCH_RAZORPAY__KEY_SECRET": KEY_SECRET,
        "PAYLATCH_CHECKOUT__RETURN_URL": "https://shop.example/thanks/{order_id}",
        "PAYLATCH_HTTP__HOST": "127.0.0.1",
        "PAYLATCH_HTTP__PORT": "0",
        "PAYLATCH_HTTP__PRIVATE_PORT": "0",
        "PAYLATCH_WATCHER__PRIVATE_PORT": "0",
        "PAYLATCH_EMAIL__HOST": "127.0.0.1",
        "PAYLATCH_EMAIL__PORT": str(mail_port),
        "PAYLATCH_EMAIL__FROM": "PayLatch demo <shop@example.com>",
        "PAYLATCH_NOTIFICATIONS__ADMIN_EMAIL": "admin@example.com",
        "PAYLATCH_NOTIFICATIONS__RATES": '{"email": 1000}',
        "PAYLATCH_NOTIFICATIONS__RECIPIENT_INTERVAL": "0",  # the simulated shop has a handful of customers
        "PAYLATCH_LOG__FORMAT": "json",
    }
    return child_environment(**{**own, **more})


def settings_of(values: Mapping[str, str]) -> Settings:
    """The settings that a process with this environment would have, as far as this process needs them."""
    return Settings.model_validate({"mongodb": {"uri": values["PAYLATCH_MONGODB__URI"]}})


@contextlib.asynccontextmanager
async def local_stack(folder: Path, mail_port: int, *, port: int = 0, **more: str) -> AsyncIterator[Stack]:
    """Database and indexes; the daemons are started by whoever asks. Everything ends on leaving."""
    async with embedded_database(port or free_port(), folder / "data") as uri:
        stack = Stack(folder, uri, environment(uri, mail_port, **more))
        settings = settings_of(stack.environment)
        async with database(settings) as db:
            await require_replica_set(db)
            await create_indexes(db, settings)
        try:
            yield stack
        finally:
            await stack.stop()
