"""All settings, read once: environment, `.env`, `paylatch.toml`, a secrets folder. Nothing else reads the environment.

Names are `PAYLATCH_<SECTION>__<NAME>`. Durations are seconds, sizes are bytes, unless a name says otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import ConfigDict, Field, IPvAnyNetwork, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NestedSecretsSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from models.channel_settings import AppriseSettings, OutgoingWebhookSettings, SmsSettings, WhatsAppSettings
from models.errors import SettingsError
from models.section import Bytes, Port, Seconds, Section

PREFIX = "PAYLATCH_"
_NOT_SECTIONS = ("test_", "secrets_dir")
_LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})
ENV_FILE = Path(".env")
TOML_FILE = Path("paylatch.toml")

# Names people already have in their environment, and where they belong; the first found counts, PAYLATCH_ names win.
ALIASES: dict[tuple[str, str], tuple[str, ...]] = {
    ("razorpay", "webhook_secrets"): ("RAZORPAY_WEBHOOK_SECRET", "RZP_WEBHOOK_SECRET"),
    ("razorpay", "key_id"): ("RAZORPAY_KEY_ID",),
    ("razorpay", "key_secret"): ("RAZORPAY_KEY_SECRET",),
    ("mongodb", "uri"): ("MONGODB_URI",),
}
ALIAS_LABEL = "default"
_SECTION = re.compile(r'error parsing value for field "(\w+)"')  # as pydantic-settings words it

ORDER_PLACE = "{order_id}"
"""What is filled in `checkout.return_url`."""
_DATABASE = re.compile(r'[^/\\. "$\0]{1,63}')
_WEB_ADDRESS = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
RAZORPAY_SOURCES = (
    "52.66.75.174",
    "52.66.76.63",
    "52.66.151.218",
    "35.154.217.40",
    "35.154.22.73",
    "35.154.143.15",
    "13.126.199.247",
    "13.126.238.192",
    "13.232.194.134",
    "18.96.225.0/26",
    "18.99.161.0/26",
)
"""Where Razorpay says that its webhooks come from (India)."""

Recipient = Literal["customer", "admin", "user"]
Routes = dict[str, dict[Recipient, tuple[str, ...]]]
UnknownPolicy = Literal["resend", "hold"]

DEFAULT_ROUTES: Routes = {
    "payment_completed": {"customer": ("email", "whatsapp"), "admin": ("inapp",), "user": ("inapp",)},
    "payment_failed": {"customer": ("email",)},
    "payment_refunded": {"customer": ("email", "whatsapp"), "admin": ("inapp",)},
    "refund_processed": {"customer": ("email", "whatsapp"), "admin": ("inapp",)},
    "refund_failed": {"customer": ("email", "whatsapp"), "admin": ("inapp",)},
    "payment_review": {"admin": ("inapp", "email")},
    "dispute_opened": {"admin": ("inapp", "email")},
    "dispute_closed": {"admin": ("inapp", "email")},
}
"""Notices about orders."""
ALERT_ROUTES: Routes = {"alert": {"admin": ("inapp", "email", "apprise")}}
"""The one notice that is about no order; it is for administrators only."""


class CollectionNames(Section):
    """Where each kind of document lives; the shop may already call its orders something else."""

    webhook_events: str = "webhook_events"
    orders: str = "orders"
    ledger_entries: str = "ledger_entries"
    fulfilments: str = "fulfilments"
    notification_log: str = "notification_log"
    notifications: str = "notifications"
    watcher_state: str = "watcher_state"
    watcher_dead_letters: str = "watcher_dead_letters"
    watcher_heartbeat: str = "watcher_heartbeat"
    alerts: str = "alerts"
    audit_log: str = "audit_log"


class MongoSettings(Section):
    """The database: a replica set, since transactions and change streams need one."""

    uri: SecretStr
    database: str = "paylatch"
    collections: CollectionNames = CollectionNames()
    server_selection_seconds: Seconds = 5.0
    """How long a start waits for a server before it says that there is none."""

    @field_validator("database")
    @classmethod
    def _mongodb_takes_it(cls, name: str) -> str:
        if not _DATABASE.fullmatch(name):
            msg = "a database's name has 1 to 63 characters, without spaces and / \\ . \" $"
            raise ValueError(msg)
        return name


class RazorpaySettings(Section):
    """What Razorpay and we share."""

    webhook_secrets: dict[str, SecretStr] = {}
    """Label -> webhook secret. Several during a rotation: retries of older events stay signed with the old one."""
    key_id: str | None = None
    key_secret: SecretStr | None = None
    mode: Literal["live", "test"] | None = None
    """One mode per process, since bodies carry none. Unset: taken from the key id, else live."""
    account_ids: tuple[str, ...] = ()
    """Accounts whose events are ours; empty takes every account that signs with our secret."""
    api_url: str = "https://api.razorpay.com"
    api_connect_timeout: Seconds = 3.0
    api_read_timeout: Seconds = 5.0
    api_retries: Annotated[int, Field(ge=0, le=5)] = 2
    """Further tries of a request that was answered 429 or 5xx."""

    @field_validator("api_url")
    @classmethod
    def _not_in_clear(cls, url: str) -> str:
        parts = urlsplit(url)
        local = parts.scheme == "http" and parts.hostname in _LOCAL
        if not parts.hostname or not (parts.scheme == "https" or local) or parts.username or parts.query:
            msg = "it must be an https address (http only on this machine): every request carries the key's secret"
            raise ValueError(msg)
        return url.rstrip("/")

    @field_validator("webhook_secrets", mode="before")
    @classmethod
    def _not_empty(cls, secrets: object) -> object:
        if secrets == "":
            msg = 'it is empty: write {"label": "secret"}, or remove the line'
            raise ValueError(msg)
        return secrets

    @field_validator("webhook_secrets")
    @classmethod
    def _no_empty_secret(cls, secrets: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for label, secret in secrets.items():
            if not label or not secret.get_secret_value().strip():
                msg = f"the webhook secret labelled {label!r} is empty: anybody could sign with it"
                raise ValueError(msg)
        return secrets

    @field_validator("key_secret")
    @classmethod
    def _no_empty_key(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not secret.get_secret_value().strip():
            msg = "it is empty: anybody could sign a checkout callback with it; set it, or remove the line"
            raise ValueError(msg)
        return secret

    @model_validator(mode="after")
    def _mode_fits_key(self) -> RazorpaySettings:
        key_id = self.key_id or ""
        if self.mode and key_id.startswith("rzp_") and not key_id.startswith(f"rzp_{self.mode}_"):
            msg = f"mode is {self.mode} but key_id is of the other mode"
            raise ValueError(msg)
        return self

    @property
    def effective_mode(self) -> Literal["live", "test"]:
        """The mode in force."""
        return self.mode or ("test" if (self.key_id or "").startswith("rzp_test_") else "live")


class OrderSettings(Section):
    """How to read the shop's orders where they differ from ours."""

    amount_path: str | None = None
    """Dotted path of the expected amount in orders that lack `payment.amount`, such as `totals.grandTotal`."""
    amount_unit: Literal["smallest", "major"] = "smallest"
    """Unit of the number at `amount_path`: paise (smallest) or rupees (major)."""
    currency_path: str | None = None
    """Dotted path of the currency in orders that lack `payment.currency`."""
    default_currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "INR"
    """Currency of an order that names none anywhere."""
    link_note_keys: tuple[str, ...] = ("order_id", "orderId", "merchant_order_id")
    """Names under which your payment links' notes hold the order's number or `_id`."""
    customer_bears_fee: bool = False
    """The customer pays the provider's fee on top: the provider's own order, paid in full, decides what fits."""


class HttpSettings(Section):
    """The public endpoint and the webhook process's private port."""

    host: str = "0.0.0.0"  # noqa: S104 - the provider must reach it
    port: Port = 8080
    private_host: str = "127.0.0.1"
    private_port: Port = 9080
    extra_paths: tuple[str, ...] = ()
    """Further paths of the same endpoint, such as `/api/razorpay/webhook`."""
    max_body_bytes: Annotated[int, Field(gt=0, le=4 * 1024 * 1024)] = 1024 * 1024
    """At most 4 MiB: body and parsed payload must fit into one document."""
    max_inflight_bytes: Bytes = 64 * 1024 * 1024
    body_timeout: Seconds = 2.0
    answer_deadline: Seconds = 3.0
    """From arrival to the answer; the provider gives up after 5 s."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Networks whose `X-Forwarded-For` is believed; nobody's is without them."""
    source_allow_list: Literal["off", "report", "enforce"] = "off"
    """What becomes of a webhook from none of the allowed sources: nothing, a log line and a count, or a 403."""
    allowed_sources: tuple[IPvAnyNetwork, ...] = tuple(ip_network(source) for source in RAZORPAY_SOURCES)

    @field_validator("allowed_sources")
    @classmethod
    def _some_source(cls, sources: tuple[IPvAnyNetwork, ...]) -> tuple[IPvAnyNetwork, ...]:
        if not sources:
            msg = "an empty list would refuse every webhook; to check no source, set source_allow_list to off"
            raise ValueError(msg)
        return sources

    @field_validator("extra_paths")
    @classmethod
    def _absolute(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [path for path in paths if not path.startswith("/") or "{" in path]:
            msg = f"paths must be absolute and literal, not {wrong[0]!r}"
            raise ValueError(msg)
        return paths


class CheckoutSettings(Section):
    """The routes that a buyer's browser calls after paying."""

    return_url: str | None = None
    """Where a buyer goes after a payment link, such as `https://shop.example/orders/{order_id}`."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may read the answers (CORS), each exactly as a browser sends it."""
    rate: Annotated[int, Field(ge=1)] = 60
    """Requests per address and minute."""

    @field_validator("return_url")
    @classmethod
    def _web_address(cls, template: str | None) -> str | None:
        if template is None:
            return None
        try:
            parts = urlsplit(template)
            whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
            usable = whole and _WEB_ADDRESS.fullmatch(template)
        except ValueError:
            usable = False
        rest = template.replace(ORDER_PLACE, "")
        if not usable or "{" in rest or "}" in rest or "{" in urlsplit(template).netloc:
            msg = f"it must be a whole http(s) address in which at most {ORDER_PLACE}, after the host, is filled"
            raise ValueError(msg)
        return template

    @field_validator("allowed_origins")
    @classmethod
    def _exact(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [origin for origin in origins if not _ORIGIN.fullmatch(origin)]:
            msg = f"an origin is scheme, host and perhaps port, such as https://shop.example, not {wrong[0]!r}"
            raise ValueError(msg)
        return origins


class ProcessingSettings(Section):
    """How events are worked on."""

    workers: Annotated[int, Field(ge=1, le=256)] = 8
    queue: Annotated[int, Field(ge=1)] = 1000
    """Claimable rows remembered in memory; what does not fit is found by the recovery loop."""
    lease: Seconds = 30.0
    recovery_interval: Seconds = 2.0
    deadline: Seconds = 10.0
    max_attempts: Annotated[int, Field(ge=1)] = 10
    parked_for: Seconds = 72 * 3600.0
    drain: Seconds = 8.0


class WatcherSettings(Section):
    """The watcher."""

    private_host: str = "127.0.0.1"
    private_port: Port = 9081
    leader_lease: Seconds = 10.0
    checkpoint_interval: Seconds = 0.2
    sweep_interval: Seconds = 900.0
    """Between two comparisons of the orders that changed lately with what was told of them."""
    heartbeat_interval: Seconds = 30.0
    stalled_after: Seconds = 90.0
    """Without any heartbeat arriving the stream counts as standing still; several heartbeats long."""
    poll_interval: Seconds = 2.0
    drain: Seconds = 8.0


class EmailSettings(Section):
    """Mail by SMTP."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    host: str | None = None
    port: Port = 587
    username: str | None = None
    password: SecretStr | None = None
    tls: Literal["auto", "starttls", "tls", "none"] = "auto"
    """auto = STARTTLS where the server offers it."""
    from_: Annotated[str, Field(alias="from")] = ""
    timeout: Seconds = 20.0
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4


DEFAULT_RATES = {"email": 10.0, "whatsapp": 10.0, "sms": 10.0, "webhook": 10.0, "apprise": 1.0}
DEFAULT_UNKNOWN_POLICY: dict[str, UnknownPolicy] = {"email": "resend", "apprise": "resend"}
"""Of channels whose receivers take a second copy; one that refuses it (keyed) is sent to again, any other is held."""


class NotificationSettings(Section):
    """Who is told what, by which channel."""

    routes: Routes = {}
    """Notice -> recipient -> channels; a notice named here replaces that notice's line of the default table."""
    admin_email: str | None = None
    expire_after: Seconds = 24 * 3600.0
    """Measured from the fact; an older notice is not sent any more."""
    failed_stale_after: Seconds = 2 * 3600.0
    max_attempts: Annotated[int, Field(ge=1)] = 12
    """Tries of a message whose fate stays unknown; one that was certainly not sent is tried until it is too old."""
    templates: Path | None = None
    """Folder whose templates are used instead of the built-in ones of the same name."""
    language_path: str | None = None
    """Dotted path of the customer's language in an order, such as `customer.language`; unset: the shop's language."""
    unknown_policy: dict[str, UnknownPolicy] = {}
    """Channel -> what becomes of a message that may have been sent; a channel named here replaces its default."""
    rates: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Channel -> messages a second, of one process; a channel named here replaces its default."""
    recipient_interval: Annotated[float, Field(ge=0)] = 2.0
    """Seconds between messages of one channel to one person, beyond `recipient_burst` at once; 0 = no pacing."""
    recipient_burst: Annotated[int, Field(ge=1)] = 5
    alert_spacing: Seconds = 600.0
    """Least time between two messages about one kind of alert; what comes meanwhile is in the next one."""
    alert_repeat: Seconds = 6 * 3600.0
    """After which an alert that goes on happening is told again."""
    gap_cap: Annotated[int, Field(ge=0, le=10_000)] = 100
    """Messages sent after a gap in the stream until an operator releases more."""

    @field_validator("routes")
    @classmethod
    def _known_notices(cls, routes: Routes) -> Routes:
        known = {**DEFAULT_ROUTES, **ALERT_ROUTES}
        if unknown := sorted(set(routes) - set(known)):
            msg = f"unknown notice {unknown[0]!r}; the notices are {', '.join(known)}"
            raise ValueError(msg)
        if set(routes.get("alert", {})) - {"admin"}:
            msg = "alerts are for the recipient admin only"
            raise ValueError(msg)
        return routes

    @property
    def effective_routes(self) -> Routes:
        """The default table with the configured lines in place."""
        return {**DEFAULT_ROUTES, **ALERT_ROUTES, **self.routes}

    def policy(self, channel: str, *, keyed: bool) -> UnknownPolicy:
        """What becomes of a message of this channel that may have been sent."""
        default: UnknownPolicy = "resend" if keyed else DEFAULT_UNKNOWN_POLICY.get(channel, "hold")
        return self.unknown_policy.get(channel, default)

    def rate(self, channel: str) -> float | None:
        """Messages a second; None = as fast as they come."""
        return {**DEFAULT_RATES, **self.rates}.get(channel)


class ShopSettings(Section):
    """How messages name the shop."""

    name: str = "Our shop"
    url: str | None = None
    locale: str = "en_IN"
    timezone: str = "Asia/Kolkata"


class ReconcileSettings(Section):
    """Comparing orders and ledger with what the provider's API says."""

    every: Annotated[float, Field(ge=0)] = 0.0
    """Between two rounds of the watchers' hosts; 0: only `paylatch reconcile` does it."""
    older_than: Seconds = 15 * 60.0
    """How long an unpaid order must have been quiet before the provider is asked about it."""
    within: Seconds = 7 * 24 * 3600.0
    """How long it may have been quiet for."""


class LogSettings(Section):
    """Where and how loud."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    """auto = console on a terminal, JSON lines elsewhere."""


class Settings(BaseSettings):
    """Everything a process is told from outside."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=False,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    mongodb: MongoSettings
    razorpay: RazorpaySettings = RazorpaySettings()
    orders: OrderSettings = OrderSettings()
    http: HttpSettings = HttpSettings()
    checkout: CheckoutSettings = CheckoutSettings()
    processing: ProcessingSettings = ProcessingSettings()
    watcher: WatcherSettings = WatcherSettings()
    email: EmailSettings = EmailSettings()
    whatsapp: WhatsAppSettings = WhatsAppSettings()
    sms: SmsSettings = SmsSettings()
    outgoing_webhook: OutgoingWebhookSettings = OutgoingWebhookSettings()
    apprise: AppriseSettings = AppriseSettings()
    notifications: NotificationSettings = NotificationSettings()
    shop: ShopSettings = ShopSettings()
    reconcile: ReconcileSettings = ReconcileSettings()
    log: LogSettings = LogSettings()
    crash_point: str | None = None
    """Tests only: the named point at which the process kills itself, `name` or `name:N` for the N-th time."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Strongest first: arguments, environment, `.env`, secrets folder, `paylatch.toml`, the aliases."""
        return (
            init_settings,
            env_settings,
            dotenv_settings,
            NestedSecretsSettingsSource(file_secret_settings, secrets_dir_missing="error"),
            TomlConfigSettingsSource(settings_cls, TOML_FILE),
            AliasSource(settings_cls),
        )


class AliasSource(PydanticBaseSettingsSource):
    """The names people already have (`RAZORPAY_WEBHOOK_SECRET`, ...), used where no PAYLATCH_ name was given."""

    def get_field_value(self, field: object, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 - the interface's
        """Unused: the whole mapping is made at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Section -> name -> value for every alias that is set and not overridden."""
        environment = {**dotenv_values(ENV_FILE), **os.environ}
        found: dict[str, dict[str, Any]] = {}
        for (section, name), aliases in ALIASES.items():
            value = next((environment[alias] for alias in aliases if alias in environment), None)
            if value is None or name in self.current_state.get(section, {}):
                continue
            found.setdefault(section, {})[name] = {ALIAS_LABEL: value} if name == "webhook_secrets" else value
        return found


def load_settings(**overrides: Any) -> Settings:  # noqa: ANN401 - sections as keyword arguments
    """Read and check all settings.

    Raises `SettingsError` whose text names each wrong setting by its environment name, never its value.
    """
    secrets = os.environ.get("PAYLATCH_SECRETS_DIR")
    _refuse_unknown_sections({**dotenv_values(ENV_FILE), **os.environ})
    try:
        return Settings(
            _env_file=ENV_FILE,
            _secrets_dir=secrets,
            **overrides,
        )
    except ValidationError as error:
        raise SettingsError("; ".join(_sentence(problem) for problem in error.errors(include_input=False))) from None
    except ValueError as error:  # a value that should be JSON and is not, a broken TOML file
        raise SettingsError(_unreadable(error)) from None


def require_webhook_secrets(settings: Settings) -> None:
    """Refuse to serve without a secret: an unsigned endpoint would accept anybody's word for money."""
    if not settings.razorpay.webhook_secrets:
        raise SettingsError(
            "no webhook secret is set: put the secret of the Razorpay dashboard's webhook page into "
            'PAYLATCH_RAZORPAY__WEBHOOK_SECRETS={"2026-01": "..."} (or RAZORPAY_WEBHOOK_SECRET)',
        )


def _refuse_unknown_sections(environment: Mapping[str, str | None]) -> None:
    """A mistyped section would be ignored in silence. PAYLATCH_TEST_ names belong to the tests."""
    for name in sorted(environment):
        section = name.removeprefix(PREFIX).split("__")[0].lower()
        if name.startswith(PREFIX) and section not in Settings.model_fields and not section.startswith(_NOT_SECTIONS):
            msg = f"{name} is not a setting: see .env.example for the names"
            raise SettingsError(msg)


def _unreadable(error: ValueError) -> str:
    """Which section holds the value that is no JSON; the value itself is never shown."""
    if section := _SECTION.search(str(error)):
        return f"PAYLATCH_{section[1].upper()}__... is wrong: a value of this section must be JSON and is not"
    return f"the settings cannot be read: {str(error).splitlines()[0]}"


def _sentence(problem: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    path = [str(part) for part in problem["loc"] if part != "[key]"]
    name = "PAYLATCH_" + "__".join(part.rstrip("_").upper() for part in path[:2])
    inside = f" (at {'.'.join(path[2:])})" if path[2:] else ""
    if problem["type"] == "missing":
        hint = name if len(path) > 1 else f"{name}__URI" if path == ["mongodb"] else name
        return f"{hint} is not set: see .env.example for what it holds"
    if problem["type"] == "extra_forbidden":
        full = "PAYLATCH_" + "__".join(part.rstrip("_").upper() for part in path)
        return f"{full} is not a setting: see .env.example for the names"
    return f"{name}{inside} is wrong: {problem['msg'].removeprefix('Value error, ')}"


def child_environment(**values: str) -> dict[str, str]:
    """The environment of a process that must see these settings and none that this process was given."""
    known = {alias for aliases in ALIASES.values() for alias in aliases}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {**{name: value for name, value in inherited.items() if name not in known}, **values}
