"""The `paylatch` command. Each sub-command is a module of its own, imported only when it is called."""

from __future__ import annotations

import os
import sys

from cyclopts import App
from pymongo.errors import PyMongoError

from models.errors import (
    DatabaseUnfit,
    HistoryLost,
    PayLatchError,
    ProviderUnavailable,
    Refused,
    SettingsError,
    Unavailable,
    WrongArgument,
)

NOT_ALLOWED = 13
OVERVIEW: tuple[list[str], ...] = ([], ["-h"], ["--help"])
"""Asked for every command's first sentence, so that every command must be imported."""
EXIT_CODES: dict[type[PayLatchError], int] = {
    WrongArgument: 2,
    Refused: 1,
    SettingsError: 2,
    DatabaseUnfit: 3,
    HistoryLost: 4,
    Unavailable: 5,
    ProviderUnavailable: 5,
}

app = App(
    name="paylatch",
    help="Payment webhooks that take effect exactly once, and notifications that are never lost.\n\n"
    "Settings come from the environment, `.env`, `paylatch.toml` or a secrets folder; `.env.example` lists them all. "
    "Exit codes: 0 done, 1 refused or not all well, 2 a setting or an argument is wrong, 3 the database lacks "
    "something, 4 no change stream can be read, 5 the database or the provider's API cannot be reached.",
)
app.command("scripts.serve:serve", name="serve")
app.command("scripts.watch:watch", name="watch")
app.command("scripts.database:run_database", name="database")
app.command("scripts.indexes:indexes", name="indexes")
app.command("scripts.doctor:doctor", name="doctor")
app.command("scripts.status:status", name="status")
app.command("scripts.events:app", name="events")
app.command("scripts.orders:app", name="orders")
app.command("scripts.notifications:app", name="notifications")
app.command("scripts.reconcile:reconcile", name="reconcile")
app.command("scripts.alerts:app", name="alerts")
app.command("scripts.message_templates:app", name="templates")
app.command("scripts.simulate:simulate", name="simulate")
app.command("scripts.demo:demo", name="demo")
app.command("scripts.run:run", name="run")


def main() -> None:
    """Run one command; an error of ours is one sentence on standard error and an exit code."""
    if sys.argv[1:] in OVERVIEW:
        app.resolved_commands()
    try:
        app()
    except PayLatchError as error:
        sys.stderr.write(f"paylatch: {error}\n")
        sys.exit(next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1))
    except PyMongoError as error:  # its text may quote documents
        code = getattr(error, "code", None)
        sys.stderr.write(
            f"paylatch: the database did not do it ({type(error).__name__}{f', code {code}' if code else ''})\n"
        )
        sys.exit(3 if code == NOT_ALLOWED else 5)
    except BrokenPipeError:  # `paylatch events list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
