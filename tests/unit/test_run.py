"""What `paylatch run` leaves for the other commands."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from scripts.run import _exports
from scripts.stack import SECRETS, Stack, environment


def test_a_shell_that_reads_the_file_has_the_stacks_settings_and_nothing_else_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    uri = "mongodb://127.0.0.1:1/?directConnection=true"
    file = _exports(Stack(folder, uri, {**environment(uri, 1025), "OTHER": "x"}))
    shown = subprocess.run(
        ["sh", "-c", '. "$1"; env', "sh", str(file)], env={}, capture_output=True, text=True, check=True
    ).stdout
    said = dict(line.split("=", 1) for line in shown.splitlines())
    assert said["PAYLATCH_MONGODB__URI"] == uri
    assert json.loads(said["PAYLATCH_RAZORPAY__WEBHOOK_SECRETS"]) == SECRETS
    assert said["PAYLATCH_EMAIL__FROM"] == "PayLatch demo <shop@example.com>"
    assert "OTHER" not in said
