"""What the settings alone tell: which parts are on, and whom they leave out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from models.errors import SettingsError
from models.settings import Settings, require_webhook_secrets
from models.telemetry import Telemetry
from scripts.checks import Finding
from watcher.app import routed_channels
from watcher.channels.registry import CHANNELS, unconfigured
from watcher.render import Renderer
from webhook.providers.razorpay_api import require_key

_KEY_PREFIXES = ("rzp_live_", "rzp_test_")


def settings_findings(settings: Settings) -> Iterator[Finding]:
    """Every check that needs nothing but the settings, in the order in which one sets PayLatch up."""
    yield Finding("ok", "settings", f"readable; Razorpay mode {settings.razorpay.effective_mode}")
    yield _webhook_secrets(settings)
    yield _api_key(settings)
    yield _callers(settings)
    yield _callbacks(settings)
    yield from _channels(settings)
    yield _templates(settings)
    yield _alerts_reach(settings)
    yield _reconciliation(settings)


def _webhook_secrets(settings: Settings) -> Finding:
    what, razorpay = "webhook secrets", settings.razorpay
    try:
        require_webhook_secrets(settings)
    except SettingsError as error:
        return Finding("WRONG", what, str(error))
    same = [label for label, secret in razorpay.webhook_secrets.items() if secret == razorpay.key_secret]
    if same:
        return Finding(
            "warning",
            what,
            f"{same[0]} is the API key's secret: take the one of the dashboard's webhook page, or every webhook is "
            "refused",
        )
    return Finding("ok", what, f"{len(razorpay.webhook_secrets)} live: {', '.join(razorpay.webhook_secrets)}")


def _api_key(settings: Settings) -> Finding:
    what, razorpay = "API key", settings.razorpay
    if razorpay.key_id is None and razorpay.key_secret is None:
        return Finding("ok", what, "not set: no reconciliation and no checkout callbacks")
    if razorpay.key_secret is None:
        says = "no reconciliation and no checkout callbacks"
        return Finding("warning", what, f"PAYLATCH_RAZORPAY__KEY_SECRET is not set: {says}")
    if razorpay.key_id is None:
        says = "no reconciliation; checkout callbacks do without it"
        return Finding("warning", what, f"PAYLATCH_RAZORPAY__KEY_ID is not set: {says}")
    if not razorpay.key_id.startswith(_KEY_PREFIXES):
        return Finding(
            "warning", what, "PAYLATCH_RAZORPAY__KEY_ID does not begin with rzp_live_ or rzp_test_ as Razorpay's do"
        )
    return Finding("ok", what, f"set, of {razorpay.effective_mode} mode; --online tries it")


def _callers(settings: Settings) -> Finding:
    what, http = "callers", settings.http
    listed = f"allow-list {http.source_allow_list}"
    if http.trusted_proxies:
        proxies = ", ".join(map(str, http.trusted_proxies))
        return Finding("ok", what, f"{listed}; addresses are taken from X-Forwarded-For of {proxies}")
    if http.source_allow_list == "enforce":
        says = "behind a proxy every webhook is refused: name it in PAYLATCH_HTTP__TRUSTED_PROXIES"
    elif settings.razorpay.key_secret is not None:
        says = "behind a proxy all buyers share one rate limit: name it in PAYLATCH_HTTP__TRUSTED_PROXIES"
    else:
        return Finding("ok", what, f"{listed}; no proxy is trusted")
    return Finding("warning", what, f"{listed}; no proxy is trusted: {says}")


def _callbacks(settings: Settings) -> Finding:
    what, checkout = "checkout callbacks", settings.checkout
    if settings.razorpay.key_secret is None:
        return Finding("ok", what, "off: PAYLATCH_RAZORPAY__KEY_SECRET is not set")
    origins = ", ".join(checkout.allowed_origins) or "PayLatch's own origin only"
    back = checkout.return_url or "a line of thanks (PAYLATCH_CHECKOUT__RETURN_URL is not set)"
    return Finding("ok", what, f"on; read by pages of {origins}; a browser that posts is led to {back}")


def _channels(settings: Settings) -> Iterator[Finding]:
    """One line for each that a route names; without a needed one the watcher does not start."""
    off, needed = unconfigured(settings), routed_channels(settings, optional=False)
    for name in sorted(routed_channels(settings)):
        what = f"channel {name}"
        if name not in CHANNELS:
            yield Finding("WRONG", what, f"PAYLATCH_NOTIFICATIONS__ROUTES names it; there are: {', '.join(CHANNELS)}")
        elif name not in off:
            yield _buildable(name, settings)
        elif name in needed:
            yield Finding("WRONG", what, f"notices are routed to it, but {off[name]}: the watcher does not start")
        else:
            yield Finding("ok", what, f"off: {off[name]}")


class _NoStores:
    """Channels store nothing while they are only made."""

    @property
    def notifications(self) -> NoReturn:
        """Nobody asks."""
        raise NotImplementedError


def _buildable(name: str, settings: Settings) -> Finding:
    """A channel that is half configured says so only when it is made."""
    try:
        CHANNELS[name].build(settings, _NoStores())
    except SettingsError as error:
        return Finding("WRONG", f"channel {name}", str(error))
    return Finding("ok", f"channel {name}", "configured")


def _templates(settings: Settings) -> Finding:
    what, folder = "templates", settings.notifications.templates
    try:
        Renderer(settings, Telemetry())
    except SettingsError as error:
        return Finding("WRONG", what, str(error))
    return Finding("ok", what, f"yours of {folder} before the built-in ones" if folder else "the built-in ones")


def _alerts_reach(settings: Settings) -> Finding:
    """Whether a person learns of an alert without looking into the database."""
    what, notifications = "alerts reach", settings.notifications
    routed = notifications.effective_routes["alert"].get("admin", ())
    usable = [name for name in routed if name in CHANNELS and name not in unconfigured(settings)]
    if notifications.admin_email is None and "email" in usable:
        usable.remove("email")
    if heard := [name for name in usable if name != "inapp"]:
        return Finding("ok", what, f"the administrators by {', '.join(heard)}")
    return Finding(
        "warning",
        what,
        "nobody outside the database: set PAYLATCH_NOTIFICATIONS__ADMIN_EMAIL or PAYLATCH_APPRISE__URLS",
    )


def _reconciliation(settings: Settings) -> Finding:
    what, every = "reconciliation", settings.reconcile.every
    if not every:
        return Finding("ok", what, "only by `paylatch reconcile`: PAYLATCH_RECONCILE__EVERY is 0")
    try:
        require_key(settings.razorpay)
    except SettingsError as error:
        return Finding("WRONG", what, f"every {every:g} s, but {error}")
    return Finding("ok", what, f"every {every:g} s by the watchers' hosts")
