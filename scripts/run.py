"""`paylatch run`: the same stack as the demo, left up to be tried by hand."""

from __future__ import annotations

import random
import shlex
import socket
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from models.database import database
from models.duties import stop_signals
from models.settings import PREFIX
from scripts.embedded import free_port
from scripts.simulator.builders import encode, identifier, payment_captured
from scripts.simulator.checkout import attempt, checkout
from scripts.simulator.sender import headers, sign
from scripts.simulator.shop import MongoShop
from scripts.sink import Mail, mail_sink
from scripts.stack import SECRETS, Daemon, Stack, local_stack, settings_of

PREFERRED = {
    "PAYLATCH_HTTP__PORT": 8080,
    "PAYLATCH_HTTP__PRIVATE_PORT": 9080,
    "PAYLATCH_WATCHER__PRIVATE_PORT": 9081,
}


async def run() -> int:
    """Start database, webhook, watcher and a mail server, say where they are, and leave them up until Ctrl-C.

    Everything is in a temporary folder and gone afterwards. The usual ports are taken where they are free.

    Example: `paylatch run`
    """
    console, mail_port = Console(), _port(1025)
    ports = {name: str(_port(preferred)) for name, preferred in PREFERRED.items()}
    with tempfile.TemporaryDirectory(prefix="paylatch-run-") as folder, mail_sink(mail_port, _show):
        async with local_stack(Path(folder), mail_port, port=_port(27018), **ports) as stack:
            serve, watch = await stack.start("serve"), await stack.start("watch")
            console.print(_welcome(stack, serve, watch, mail_port), markup=False, soft_wrap=True)
            console.print(await _curl(stack, serve), markup=False, soft_wrap=True, highlight=False)
            console.print("\nCtrl-C ends it. Mails that arrive are shown here:")
            with stop_signals() as stop:
                await stop.wait()
    return 0


def _show(mail: Mail) -> None:
    sys.stdout.write(f"  mail to {mail.recipients[0]}: {mail.subject}\n")
    sys.stdout.flush()


def _welcome(stack: Stack, serve: Daemon, watch: Daemon, mail_port: int) -> str:
    private, watching = serve.ports["private_port"], watch.ports["private_port"]
    return (
        f"webhook   http://127.0.0.1:{serve.ports['port']}/webhooks/razorpay\n"
        f"          http://127.0.0.1:{private}/readyz  /metrics  /health/stats\n"
        f"watcher   http://127.0.0.1:{watching}/readyz  /metrics\n"
        f"database  {stack.uri}\n"
        f"mail      smtp://127.0.0.1:{mail_port}\n"
        f"logs      {stack.folder}/serve.log  watch.log\n\n"
        "To use the other commands on it, in another terminal:\n"
        f"  . {shlex.quote(str(_exports(stack)))}\n"
        f"  paylatch simulate --orders 20 --url http://127.0.0.1:{serve.ports['port']}/webhooks/razorpay\n"
        "  paylatch status\n\n"
        "Or pay one order by hand (the second time it is a duplicate):\n"
    )


def _exports(stack: Stack) -> Path:
    """A file that gives a shell the settings of the running stack."""
    own = {name: value for name, value in stack.environment.items() if name.startswith(PREFIX)}
    file = stack.folder / "environment.sh"
    file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in own.items()))
    return file


async def _curl(stack: Stack, serve: Daemon) -> str:
    """A signed `payment.captured` of a fresh order, ready to be pasted."""
    rng = random.Random()  # noqa: S311 - ids of one order, no secrets
    shop_order, provider_order = checkout(rng, "RUN-1", int(time.time()))
    async with database(settings_of(stack.environment)) as db:
        await MongoShop(db, rng).insert([shop_order])
    payment = attempt(rng, shop_order, provider_order, int(time.time()))
    raw = encode(payment_captured(payment, int(time.time()), identifier(rng, "acc_")))
    sent = headers(identifier(rng), sign(SECRETS["new"], raw))
    shown = "".join(f" \\\n    -H {shlex.quote(f'{name}: {value}')}" for name, value in sent.items() if "X-" in name)
    url = f"http://127.0.0.1:{serve.ports['port']}/webhooks/razorpay"
    return (
        f"  curl -i {url} -H 'Content-Type: application/json'{shown} \\\n    --data-binary {shlex.quote(raw.decode())}"
    )


def _port(preferred: int) -> int:
    """The usual port if nobody has it, else a free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", preferred))
        except OSError:
            return free_port()
        return preferred
