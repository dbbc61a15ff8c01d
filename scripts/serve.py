from __future__ import annotations

from models.crash import arm
from models.settings import load_settings
from models.telemetry import configure_logs
from webhook.app import serve as run_webhook


async def serve() -> None:
    """Run the webhook process in the foreground until SIGTERM or Ctrl-C.

    Example: `PAYLATCH_HTTP__PORT=8080 paylatch serve`
    """
    settings = load_settings()
    configure_logs(settings.log.level, settings.log.format)
    arm(settings.crash_point)
    await run_webhook(settings)
