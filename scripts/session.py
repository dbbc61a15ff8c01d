"""What a command that reads or mends the database starts with."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from models.clock import ServerClock
from models.database import Database, database, init_documents, require_replica_set
from models.settings import Settings, load_settings


@dataclass(frozen=True, slots=True)
class Session:
    """Settings, database and the server's time; the Beanie documents are bound."""

    settings: Settings
    db: Database
    clock: ServerClock


@contextlib.asynccontextmanager
async def session() -> AsyncIterator[Session]:
    """Open everything. Raises `SettingsError`, `Unavailable` or `DatabaseUnfit`, each one clear sentence."""
    settings = load_settings()
    async with database(settings) as db:
        await require_replica_set(db)
        await init_documents(db, settings)
        clock = ServerClock(db.client)
        await clock.run_once()
        yield Session(settings, db, clock)
