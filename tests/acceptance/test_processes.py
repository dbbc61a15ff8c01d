"""What operators rely on: starts that refuse with one sentence, stops that drain, and answers that wait for nobody."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models.database import Database
from models.settings import child_environment
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.mailbox import HANG, QUIET, mailbox
from tests.support.processes import processes
from tests.support.wait import eventually

pytestmark = [pytest.mark.acceptance, QUIET]

KEY = "order:ord1:payment_completed:email:customer"


def paylatch(*arguments: str, folder: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "scripts", *arguments],
        cwd=folder,
        env=child_environment(**values),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def only_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line it said beside its log; a traceback is never one."""
    lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_missing_database_address_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    done = paylatch("serve", folder=tmp_path, RAZORPAY_WEBHOOK_SECRET="x")
    assert (done.returncode, "PAYLATCH_MONGODB__URI is not set" in only_sentence(done)) == (2, True)


@pytest.mark.parametrize("empty", ['{"now": ""}', '{"now": "  "}', "{}", ""])
def test_an_empty_secret_refuses_to_start(tmp_path: Path, empty: str) -> None:
    values = {"PAYLATCH_MONGODB__URI": "mongodb://127.0.0.1:1", "PAYLATCH_RAZORPAY__WEBHOOK_SECRETS": empty}
    done = paylatch("serve", folder=tmp_path, **values)
    assert done.returncode == 2
    assert "secret" in only_sentence(done).lower()


def test_no_server_is_one_sentence_and_exit_5(tmp_path: Path) -> None:
    values = {
        "PAYLATCH_MONGODB__URI": "mongodb://127.0.0.1:1",
        "PAYLATCH_MONGODB__SERVER_SELECTION_SECONDS": "0.5",
        "RAZORPAY_WEBHOOK_SECRET": "x",
    }
    done = paylatch("serve", folder=tmp_path, **values)
    assert (done.returncode, "no MongoDB server answers" in only_sentence(done)) == (5, True)


@pytest.mark.parametrize("command", ["serve", "watch"])
def test_missing_indexes_are_one_sentence_and_exit_3(tmp_path: Path, mongodb_uri: str, command: str) -> None:
    values = {
        "PAYLATCH_MONGODB__URI": mongodb_uri,
        "PAYLATCH_MONGODB__DATABASE": "paylatch_test_without_indexes",
        "RAZORPAY_WEBHOOK_SECRET": "x",
        "PAYLATCH_EMAIL__HOST": "127.0.0.1",
        "PAYLATCH_EMAIL__FROM": "shop@example.com",
    }
    done = paylatch(command, folder=tmp_path, **values)
    assert (done.returncode, "run `paylatch indexes`" in only_sentence(done)) == (3, True)


def test_an_unknown_crash_point_is_an_error(tmp_path: Path) -> None:
    values = {
        "PAYLATCH_MONGODB__URI": "mongodb://127.0.0.1:1",
        "RAZORPAY_WEBHOOK_SECRET": "x",
        "PAYLATCH_CRASH_POINT": "webhook.nowhere",
    }
    done = paylatch("serve", folder=tmp_path, **values)
    assert (done.returncode, "which is no crash point" in only_sentence(done)) == (2, True)


@pytest.mark.parametrize("command", [
    "serve", "watch", "database", "indexes", "doctor", "demo", "run", "simulate",
    "events list", "events show", "events requeue", "orders show", "orders unmatched",
    "notifications list", "notifications show", "notifications retry", "notifications resolve", "notifications release",
    "alerts list", "alerts ack", "status", "reconcile", "templates list", "templates preview",
    "orders review list", "orders review show", "orders review accept", "orders review reject",
])  # fmt: skip
def test_every_command_has_help_with_an_example(tmp_path: Path, command: str) -> None:
    done = paylatch(*command.split(), "--help", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Example" in done.stdout


@pytest.mark.parametrize("arguments", ["", "--help", "orders --help"])
def test_an_overview_says_of_every_command_what_it_does(tmp_path: Path, arguments: str) -> None:
    done = paylatch(*arguments.split(), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("│ ").split(maxsplit=1) for line in done.stdout.splitlines() if re.match("│ [a-z]", line)]
    assert len(rows) >= 3
    assert [row[0] for row in rows if len(row) < 2] == []


@pytest.mark.parametrize("arguments", [
    "events list --newer-than soon", "events list --limit 0", "events list --status new",
    "notifications list --limit -1", "notifications release --limit -1", "orders unmatched --limit 0",
    "orders review list --limit 0", "alerts list --limit 0", "templates preview nothing", "demo --orders 0",
    "demo --rate 0", "database --port 70000", "simulate --url ftp://127.0.0.1/",
])  # fmt: skip
def test_an_argument_that_makes_no_sense_ends_with_2(tmp_path: Path, mongodb_uri: str, arguments: str) -> None:
    done = paylatch(*arguments.split(), folder=tmp_path, PAYLATCH_MONGODB__URI=mongodb_uri, RAZORPAY_WEBHOOK_SECRET="x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.asyncio
async def test_sigterm_drains_both_processes_and_loses_nothing(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    count = 30
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path) as running:
        await db.orders.insert_many([sample.order(n) for n in range(count)])
        serve, watch = await running.serve(), await running.watch()
        posts = [asyncio.create_task(running.post(serve, sample.captured(n), f"E{n}")) for n in range(count)]
        await eventually(lambda: db.events.count_documents({}), "the first events are stored")
        serve.kill(signal.SIGTERM)
        watch.kill(signal.SIGTERM)
        answers = await asyncio.gather(*posts)
        assert (await serve.process.wait(), await watch.process.wait()) == (0, 0)
        again = await running.serve()
        await running.watch()
        for number, answer in enumerate(answers):
            if answer != 200:
                assert await running.post(again, sample.captured(number), f"E{number}") == 200

        async def all_told() -> bool:
            return await db.notification_log.count_documents({"status": "sent"}) == count

        await eventually(all_told, "every customer was told", 30)
        assert await db.ledger.count_documents({}) == count
        recipients = sorted(mail.recipients[0] for mail in box.mails)
        assert recipients == sorted(f"asha{n}@example.com" for n in range(count))


@pytest.mark.asyncio
async def test_a_hanging_mail_server_changes_nothing_for_the_provider(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path, PAYLATCH_EMAIL__TIMEOUT="30") as running:
        box.at_data.extend([HANG] * 50)
        await db.orders.insert_many([sample.order(n) for n in range(1, 21)])
        serve, _ = await running.serve(), await running.watch()
        assert await running.post(serve, sample.captured(1), "E1") == 200
        await running.until_told(KEY, "sending")
        started = time.monotonic()
        for number in range(2, 21):
            assert await running.post(serve, sample.captured(number), f"E{number}") == 200
        with_hanging_mail = time.monotonic() - started
        await running.until_status(20, "completed")
        assert with_hanging_mail < 30, "the answers waited for the mail server"
        box.release()


@pytest.mark.asyncio
async def test_the_watcher_hands_over_to_a_standby_at_once(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    settings = make_settings()
    async with (
        mailbox() as box,
        processes(settings, db, box, tmp_path, PAYLATCH_WATCHER__LEADER_LEASE="20") as running,
    ):
        await db.orders.insert_one(sample.order(1))
        serve, first = await running.serve(), await running.watch()

        async def first_leads() -> object:
            return await db.watcher_state.find_one({"_id": "leader", "holder": {"$ne": None}})

        await eventually(first_leads, "the first instance leads")
        await running.watch()
        first.kill(signal.SIGTERM)
        assert await first.process.wait() == 0
        assert await running.post(serve, sample.captured(1), "E1") == 200
        await running.until_told(KEY)  # within less than the 20 s that a dead leader would have to be waited for
        assert len(box.to("asha1@example.com")) == 1


def test_the_demo_holds_on_a_small_shop(tmp_path: Path) -> None:
    done = paylatch("demo", "--orders", "25", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing is missing and nothing was doubled." in done.stdout
