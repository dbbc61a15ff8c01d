from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.errors import SettingsError
from models.settings import ALIASES, Settings, load_settings, require_webhook_secrets

URI = "mongodb://user:hunter2@db.example.com/?replicaSet=rs0"
SECRET = "hunter2-webhook"

Given = Callable[..., None]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder and an environment without any name of ours."""
    monkeypatch.chdir(tmp_path)
    aliases = {alias for names in ALIASES.values() for alias in names}
    for name in list(os.environ):
        if name.upper().startswith("PAYLATCH_") or name in aliases:
            monkeypatch.delenv(name)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Given:
    def give(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return give


@pytest.fixture
def dotenv() -> Given:
    def give(**values: str) -> None:
        Path(".env").write_text("".join(f"{name}='{value}'\n" for name, value in values.items()))

    return give


@pytest.fixture
def toml() -> Callable[[str], None]:
    def give(text: str) -> None:
        Path("paylatch.toml").write_text(text)

    return give


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Given:
    """A folder as container platforms mount it: one file a name."""

    def give(**values: str) -> None:
        folder = Path("secrets")
        folder.mkdir()
        for name, value in values.items():
            (folder / name).write_text(value)
        monkeypatch.setenv("PAYLATCH_SECRETS_DIR", str(folder))

    return give


def webhook_secrets(settings: Settings) -> dict[str, str]:
    return {label: secret.get_secret_value() for label, secret in settings.razorpay.webhook_secrets.items()}


def refusal(**overrides: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(**overrides)
    return str(caught.value)


def test_one_address_is_enough_and_everything_else_has_its_default(environment: Given) -> None:
    environment(PAYLATCH_MONGODB__URI=URI)
    settings = load_settings()
    assert settings.mongodb.uri.get_secret_value() == URI
    assert settings.mongodb.database == "paylatch"
    assert (settings.http.port, settings.http.private_host, settings.http.private_port) == (8080, "127.0.0.1", 9080)
    assert (settings.watcher.private_port, settings.processing.lease, settings.processing.max_attempts) == (
        9081,
        30,
        10,
    )
    assert settings.http.max_body_bytes == 1024 * 1024
    assert settings.razorpay.effective_mode == "live"
    assert settings.notifications.effective_routes["payment_completed"]["customer"] == ("email", "whatsapp")
    assert settings.crash_point is None


def test_without_a_database_the_sentence_names_the_variable() -> None:
    assert refusal() == "PAYLATCH_MONGODB__URI is not set: see .env.example for what it holds"


def test_names_nest_with_two_underscores_in_any_case(environment: Given) -> None:
    environment(
        PAYLATCH_MONGODB__URI=URI,
        paylatch_mongodb__collections__orders="shop_orders",
        PAYLATCH_RAZORPAY__WEBHOOK_SECRETS=json.dumps({"2026-01": "one", "2026-07": "two"}),
        PAYLATCH_RAZORPAY__ACCOUNT_IDS='["acc_A"]',
        PAYLATCH_EMAIL__FROM="Tea Shop <shop@example.com>",
        PAYLATCH_HTTP__EXTRA_PATHS='["/api/razorpay/webhook"]',
    )
    settings = load_settings()
    assert settings.mongodb.collections.orders == "shop_orders"
    assert webhook_secrets(settings) == {"2026-01": "one", "2026-07": "two"}
    assert settings.razorpay.account_ids == ("acc_A",)
    assert settings.email.from_ == "Tea Shop <shop@example.com>"
    assert settings.http.extra_paths == ("/api/razorpay/webhook",)


@pytest.mark.parametrize("source", ["environment", "dotenv"])
@pytest.mark.parametrize("alias", ["RAZORPAY_WEBHOOK_SECRET", "RZP_WEBHOOK_SECRET"])
def test_the_names_people_already_have_are_read(request: pytest.FixtureRequest, source: str, alias: str) -> None:
    request.getfixturevalue(source)(
        **{alias: SECRET, "MONGODB_URI": URI, "RAZORPAY_KEY_ID": "rzp_test_1", "RAZORPAY_KEY_SECRET": "key-secret"}
    )
    settings = load_settings()
    assert webhook_secrets(settings) == {"default": SECRET}
    assert settings.mongodb.uri.get_secret_value() == URI
    assert settings.razorpay.key_id == "rzp_test_1"
    assert settings.razorpay.key_secret is not None
    assert settings.razorpay.key_secret.get_secret_value() == "key-secret"
    assert settings.razorpay.effective_mode == "test"


def test_of_two_aliases_the_first_counts_and_the_environment_beats_the_file(environment: Given, dotenv: Given) -> None:
    environment(MONGODB_URI=URI, RZP_WEBHOOK_SECRET="second", RAZORPAY_WEBHOOK_SECRET="first")
    dotenv(MONGODB_URI="mongodb://from-file", RAZORPAY_WEBHOOK_SECRET="from file")
    settings = load_settings()
    assert (webhook_secrets(settings), settings.mongodb.uri.get_secret_value()) == ({"default": "first"}, URI)


@pytest.mark.parametrize("source", ["environment", "dotenv", "secrets"])
def test_our_own_names_win_over_the_aliases(request: pytest.FixtureRequest, environment: Given, source: str) -> None:
    environment(MONGODB_URI="mongodb://alias", RAZORPAY_WEBHOOK_SECRET="alias", RAZORPAY_KEY_ID="rzp_live_1")
    request.getfixturevalue(source)(PAYLATCH_MONGODB__URI=URI, PAYLATCH_RAZORPAY__WEBHOOK_SECRETS='{"new": "own"}')
    settings = load_settings()
    assert (webhook_secrets(settings), settings.mongodb.uri.get_secret_value()) == ({"new": "own"}, URI)
    assert settings.razorpay.key_id == "rzp_live_1", "an alias fills what our names leave open"


def test_the_file_wins_over_the_aliases_too(environment: Given, toml: Callable[[str], None]) -> None:
    environment(MONGODB_URI="mongodb://alias", RAZORPAY_WEBHOOK_SECRET="alias")
    toml(f'[mongodb]\nuri = "{URI}"\n[razorpay.webhook_secrets]\nnew = "own"\n')
    settings = load_settings()
    assert (webhook_secrets(settings), settings.mongodb.uri.get_secret_value()) == ({"new": "own"}, URI)


def test_argument_environment_file_secrets_and_toml_win_in_this_order(
    environment: Given, dotenv: Given, secrets: Given, toml: Callable[[str], None]
) -> None:
    names = ("NAME", "URL", "LOCALE", "TIMEZONE")
    toml('[mongodb]\nuri = "mongodb://toml"\n[shop]\nname = "toml"\nurl = "toml"\nlocale = "toml"\ntimezone = "toml"\n')
    secrets(**{f"PAYLATCH_SHOP__{name}": "secrets" for name in names[:3]})
    dotenv(**{f"PAYLATCH_SHOP__{name}": "dotenv" for name in names[:2]})
    environment(PAYLATCH_SHOP__NAME="environment")
    shop = load_settings().shop
    assert (shop.name, shop.url, shop.locale, shop.timezone) == ("environment", "dotenv", "secrets", "toml")
    assert load_settings(shop={"name": "argument"}).shop.name == "argument"


def test_a_secrets_folder_holds_one_file_a_name(secrets: Given) -> None:
    secrets(
        PAYLATCH_MONGODB__URI=f"{URI}\n",
        paylatch_razorpay__webhook_secrets=json.dumps({"mounted": SECRET}),
        PAYLATCH_EMAIL__PASSWORD="mail-password",
    )
    settings = load_settings()
    assert settings.mongodb.uri.get_secret_value() == URI
    assert webhook_secrets(settings) == {"mounted": SECRET}
    assert settings.email.password is not None
    assert settings.email.password.get_secret_value() == "mail-password"


def test_a_secrets_folder_that_is_not_there_is_refused(environment: Given) -> None:
    environment(PAYLATCH_MONGODB__URI=URI, PAYLATCH_SECRETS_DIR="nowhere")
    assert "nowhere" in refusal()


def test_everything_can_stand_in_the_toml_file(toml: Callable[[str], None]) -> None:
    toml(
        f'[mongodb]\nuri = "{URI}"\n[mongodb.collections]\norders = "shop_orders"\n'
        '[razorpay.webhook_secrets]\n"2026-01" = "one"\n'
        '[notifications.routes.payment_failed]\ncustomer = ["sms"]\n'
    )
    settings = load_settings()
    assert settings.mongodb.collections.orders == "shop_orders"
    assert webhook_secrets(settings) == {"2026-01": "one"}
    routes = settings.notifications.effective_routes
    assert routes["payment_failed"] == {"customer": ("sms",)}
    assert routes["payment_review"] == {"admin": ("inapp", "email")}


@pytest.mark.parametrize("empty", ["", " ", "\t"])
@pytest.mark.parametrize(
    "name", ["RAZORPAY_WEBHOOK_SECRET", "RZP_WEBHOOK_SECRET", "PAYLATCH_RAZORPAY__WEBHOOK_SECRETS"]
)
def test_an_empty_secret_is_refused_wherever_it_comes_from(environment: Given, name: str, empty: str) -> None:
    value = json.dumps({"default": empty}) if name.startswith("PAYLATCH_") else empty
    environment(PAYLATCH_MONGODB__URI=URI, **{name: value})
    said = refusal()
    assert said.startswith(
        "PAYLATCH_RAZORPAY__WEBHOOK_SECRETS is wrong: the webhook secret labelled 'default' is empty"
    )


def test_a_secret_without_a_label_is_refused(environment: Given) -> None:
    environment(PAYLATCH_MONGODB__URI=URI, PAYLATCH_RAZORPAY__WEBHOOK_SECRETS=json.dumps({"": SECRET}))
    assert "PAYLATCH_RAZORPAY__WEBHOOK_SECRETS is wrong" in refusal()


def test_serving_without_any_secret_is_refused_with_the_way_to_set_one(environment: Given) -> None:
    environment(PAYLATCH_MONGODB__URI=URI)
    with pytest.raises(SettingsError, match="PAYLATCH_RAZORPAY__WEBHOOK_SECRETS"):
        require_webhook_secrets(load_settings())
    require_webhook_secrets(load_settings(razorpay={"webhook_secrets": {"a": "b"}}))


@pytest.mark.parametrize(
    "name",
    [
        "PAYLATCH_HTTP__PROT",
        "PAYLATCH_MONGODB__URL",
        "PAYLATCH_RAZORPAY__WEBHOOK_SECRET",
        "PAYLATCH_EMAIL__FORM",
        "PAYLATCH_MONGODB__COLLECTIONS__ORDER",
    ],
)
def test_a_misspelt_name_in_a_section_is_refused_with_one_sentence_that_names_it(environment: Given, name: str) -> None:
    environment(PAYLATCH_MONGODB__URI=URI, **{name: "hunter2"})
    said = refusal()
    assert said == f"{name} is not a setting: see .env.example for the names"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PAYLATCH_HTTP__PORT", "hunter2"),
        ("PAYLATCH_HTTP__PORT", "65536"),
        ("PAYLATCH_PROCESSING__LEASE", "0"),
        ("PAYLATCH_PROCESSING__WORKERS", "0"),
        ("PAYLATCH_RAZORPAY__MODE", "hunter2"),
        ("PAYLATCH_HTTP__EXTRA_PATHS", '["api/webhook"]'),
        ("PAYLATCH_HTTP__EXTRA_PATHS", '["/{name}"]'),
        ("PAYLATCH_NOTIFICATIONS__ROUTES", '{"payment_done": {"admin": ["email"]}}'),
        ("PAYLATCH_EMAIL__TLS", "hunter2"),
    ],
)
def test_a_wrong_value_is_refused_with_one_sentence_that_names_the_variable(
    environment: Given, name: str, value: str
) -> None:
    environment(PAYLATCH_MONGODB__URI=URI, **{name: value})
    said = refusal()
    assert said.startswith(f"{name} is wrong: ")
    assert "\n" not in said
    assert "hunter2" not in said


def test_every_wrong_setting_is_named_at_once(environment: Given) -> None:
    environment(PAYLATCH_HTTP__PORT="x", PAYLATCH_LOG__LEVEL="loud")
    said = refusal()
    assert all(name in said for name in ("PAYLATCH_MONGODB__URI", "PAYLATCH_HTTP__PORT", "PAYLATCH_LOG__LEVEL"))


@pytest.mark.parametrize(
    "value", ["hunter2", '{"a": "hunter2"', '["hunter2"]', '{"a": ["hunter2"]}', '{"a": {"b": "hunter2"}}', '"hunter2"']
)
def test_a_secret_is_never_in_the_error(environment: Given, value: str) -> None:
    environment(PAYLATCH_MONGODB__URI=URI, PAYLATCH_RAZORPAY__WEBHOOK_SECRETS=value)
    said = refusal()
    assert "hunter2" not in said
    assert "PAYLATCH_RAZORPAY__" in said


def test_a_broken_toml_file_is_refused_without_showing_it(toml: Callable[[str], None]) -> None:
    toml("[razorpay]\nkey_secret = hunter2\n")
    said = refusal(mongodb={"uri": URI})
    assert "hunter2" not in said
    assert said.startswith("the settings cannot be read: ")


def test_secrets_do_not_show_when_settings_are_printed(environment: Given) -> None:
    environment(
        PAYLATCH_MONGODB__URI=URI,
        RAZORPAY_WEBHOOK_SECRET=SECRET,
        RAZORPAY_KEY_SECRET="hunter2-key",
        PAYLATCH_EMAIL__PASSWORD="hunter2-mail",
    )
    settings = load_settings()
    assert "hunter2" not in repr(settings) + str(settings) + settings.model_dump_json()


@pytest.mark.parametrize(("mode", "key_id"), [("live", "rzp_test_1"), ("test", "rzp_live_1")])
def test_a_key_of_the_other_mode_is_refused(environment: Given, mode: str, key_id: str) -> None:
    environment(PAYLATCH_MONGODB__URI=URI, PAYLATCH_RAZORPAY__MODE=mode, RAZORPAY_KEY_ID=key_id)
    assert f"mode is {mode} but key_id is of the other mode" in refusal()


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a/b", "x" * 64])
def test_a_database_that_mongodb_cannot_have_is_refused(environment: Given, name: str) -> None:
    environment(PAYLATCH_MONGODB__URI=URI, PAYLATCH_MONGODB__DATABASE=name)
    assert "PAYLATCH_MONGODB__DATABASE is wrong: a database's name has 1 to 63 characters" in refusal()


def test_settings_cannot_be_changed_afterwards(environment: Given) -> None:
    environment(PAYLATCH_MONGODB__URI=URI)
    settings = load_settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.http.port = 1  # type: ignore[misc]  # that is what is tried
