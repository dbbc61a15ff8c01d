from __future__ import annotations

from functools import partial

from models.crash import arm
from models.settings import load_settings
from models.telemetry import configure_logs
from watcher.app import watch as run_watcher
from webhook.reconcile_duty import reconciling


async def watch() -> None:
    """Run the watcher in the foreground until SIGTERM or Ctrl-C. Several may run; one reads, all send.

    Example: `PAYLATCH_EMAIL__HOST=localhost PAYLATCH_EMAIL__PORT=1025 paylatch watch`
    """
    settings = load_settings()
    configure_logs(settings.log.level, settings.log.format)
    arm(settings.crash_point)
    await run_watcher(settings, partial(reconciling, settings))
