"""An operator at a terminal: real `paylatch` processes on the test's database, with nothing else in the environment."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.database import Database
from models.settings import Settings, child_environment

PAYLATCH = str(Path(sys.executable).with_name("paylatch"))


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Desk:
    """An empty folder and the settings that name the database."""

    db: Database
    settings: Settings
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return child_environment(
            PAYLATCH_MONGODB__URI=self.settings.mongodb.uri.get_secret_value(),
            PAYLATCH_MONGODB__DATABASE=self.settings.mongodb.database,
            PAYLATCH_MONGODB__SERVER_SELECTION_SECONDS="2",
            PYTHONPATH=str(Path(__file__).resolve().parents[2]),
            PYTHONIOENCODING="utf-8",
            COLUMNS="200",
        )

    async def run(self, *arguments: str, command: tuple[str, ...] = (PAYLATCH,), stdin: int | None = None) -> Said:
        """Run a command to its end; a traceback is never an answer."""
        process = await asyncio.create_subprocess_exec(
            *command,
            *arguments,
            cwd=self.folder,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert process.returncode is not None
        assert b"Traceback" not in err, err.decode()
        return Said(process.returncode, out.decode(), err.decode())

    async def event(self, event_id: str) -> dict[str, Any]:
        row = await self.db.events.find_one({"eventId": event_id})
        assert row is not None
        return row

    async def audited(self) -> list[dict[str, Any]]:
        return await self.db.audit_log.find({}).sort("createdAt", 1).to_list()
