"""`paylatch doctor`: is everything in place? One line a check, exit 1 when one of them is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator

from models.errors import SettingsError
from models.settings import load_settings
from scripts.checks import Finding
from scripts.checks.servers import server_findings
from scripts.checks.settings import settings_findings
from scripts.checks.stored import stored_findings
from scripts.options import Flag
from scripts.output import output


async def doctor(*, online: Flag = False) -> int:
    """Check that everything is in place: settings, channels, database, watcher, mail server, and what needs a person.

    A line each; WRONG keeps a process from working, a warning does not. Exit code 1 when something is WRONG.

    Example: `paylatch doctor --online`

    Parameters
    ----------
    online
        Ask Razorpay's API too whether it takes the key: one request that only reads.
    """
    console, wrong = output(), 0
    async for finding in _examine(online=online):
        wrong += finding.grade == "WRONG"
        line = f"{finding.grade:<8}{finding.what:<22}{finding.says}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 1 if wrong else 0


async def _examine(*, online: bool) -> AsyncIterator[Finding]:
    try:
        settings = load_settings()
    except SettingsError as error:
        yield Finding("WRONG", "settings", str(error))
        return
    for finding in settings_findings(settings):
        yield finding
    async for finding in stored_findings(settings):
        yield finding
    async for finding in server_findings(settings, online=online):
        yield finding
