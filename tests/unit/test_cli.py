"""What a command says when something below it fails."""

from __future__ import annotations

from typing import NoReturn

import pytest
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from models.errors import DatabaseUnfit, HistoryLost, PayLatchError, Refused, SettingsError, Unavailable, WrongArgument
from scripts import cli


def failing(error: Exception) -> object:
    def app() -> NoReturn:
        raise error

    return app


def call(monkeypatch: pytest.MonkeyPatch, app: object) -> None:
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr("sys.argv", ["paylatch", "events", "list"])


@pytest.mark.parametrize(
    ("error", "code"),
    [(OperationFailure("asha@example.com", 13), 3), (OperationFailure("x", 121), 5), (AutoReconnect("host:1"), 5)],
)
def test_a_drivers_error_is_one_sentence_without_its_text(
    error: PyMongoError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch, failing(error))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (code, 1)
    assert str(error).split(",")[0] not in said
    assert type(error).__name__ in said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused("no"), 1),
        (WrongArgument("no"), 2),
        (SettingsError("no"), 2),
        (DatabaseUnfit("no"), 3),
        (HistoryLost("no"), 4),
        (Unavailable("no"), 5),
        (PayLatchError("no"), 1),
    ],
)
def test_each_error_of_ours_has_its_exit_code(
    error: PayLatchError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch, failing(error))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (code, "paylatch: no\n")
