"""What a notice is about, read out of an order as plain texts; any field of an order may be missing or of any type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from babel import Locale, UnknownLocaleError
from babel.dates import format_datetime
from bson import ObjectId

from models.errors import SettingsError
from models.money import parse_amount, parse_currency
from watcher.money import money

if TYPE_CHECKING:
    from models.settings import Settings

_LONGEST = 200
_NOTHING: Mapping[str, Any] = {}
# Where the thing that `ref` names is kept in `payment`, and under which names its id.
_ENTRIES = {
    "payment_failed": ("attempts", ("paymentId",)),
    "refund_processed": ("refunds", ("refundId", "id")),
    "refund_failed": ("refunds", ("refundId", "id")),
    "payment_review": ("review", ("ref",)),
    "dispute_opened": ("disputes", ("disputeId", "id")),
    "dispute_closed": ("disputes", ("disputeId", "id")),
}


@dataclass(frozen=True, slots=True)
class Particulars:
    """The variables of every template; what is not known is empty."""

    order_number: str = ""
    customer: str = ""
    """The name in the shipping address."""
    amount: str = ""
    """What the notice is about: paid, tried, refunded or disputed."""
    amount_minor: str = ""
    """The same as digits, in the smallest unit of `currency`; for machines."""
    currency: str = ""
    expected: str = ""
    """What the order costs."""
    payment_id: str = ""
    provider_order_id: str = ""
    refund_id: str = ""
    dispute_id: str = ""
    method: str = ""
    reason: str = ""
    """In words, such as `insufficient funds`."""
    reason_code: str = ""
    state: str = ""
    respond_by: str = ""
    happened: str = ""
    """Date and time of the fact in the shop's time zone."""
    happened_at: str = ""
    """The same in UTC, by ISO 8601; for machines."""


class Reader:
    """Reads orders in the shop's locale, time zone and currency; raises `SettingsError` for unknown ones."""

    def __init__(self, settings: Settings) -> None:
        self.locale = settings.shop.locale
        self._zone = _zone(settings.shop.timezone)
        self._default_currency = settings.orders.default_currency
        self._currency_path = settings.orders.currency_path
        try:
            self.language = Locale.parse(self.locale).language
        except (ValueError, UnknownLocaleError):
            raise SettingsError("PAYLATCH_SHOP__LOCALE is not a locale such as en_IN") from None

    def read(self, notice: str, ref: str | None, order: Mapping[str, Any], fact_at: datetime | None) -> Particulars:
        """The particulars of one notice; never raises, whatever the order looks like."""
        payment = _mapping(order.get("payment"))
        entry = _entry(notice, ref, payment)
        currency = self._currency(order, payment, entry)
        about, amount = ref or "", _amount(notice, payment, entry)
        reason = text(_reason(entry)) or (about.partition(":")[0] if notice == "payment_review" else "")
        return Particulars(
            order_number=text(order.get("orderNumber")) or text(order.get("_id")),
            customer=_name(_mapping(order.get("shippingAddress")).get("name")),
            amount=money(amount, currency, self.locale),
            amount_minor=_digits(amount),
            currency=currency or "",
            expected=money(payment.get("amount"), self._currency(order, payment, _NOTHING), self.locale),
            payment_id=_payment_id(notice, about, payment, entry),
            provider_order_id=text(payment.get("razorpayOrderId")),
            refund_id=about if notice.startswith("refund_") else "",
            dispute_id=about if notice.startswith("dispute_") else "",
            method=_method(payment, entry),
            reason=reason.replace("_", " "),
            reason_code=reason,
            state=text(entry.get("state") or entry.get("status")).replace("_", " "),
            respond_by=self.moment(entry.get("respondBy")),
            happened=self.moment(fact_at),
            happened_at=_utc(fact_at),
        )

    def moment(self, value: object) -> str:
        """A time in the shop's zone and locale; a naive one is in UTC, a number in unix seconds; else empty."""
        try:
            if isinstance(value, int | float) and not isinstance(value, bool):
                value = datetime.fromtimestamp(value, UTC)
            if not isinstance(value, datetime):
                return ""
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return format_datetime(aware.astimezone(self._zone), "d MMM y, HH:mm", locale=self.locale)
        except (ValueError, OverflowError, OSError):
            return ""

    def _currency(self, order: Mapping[str, Any], payment: Mapping[str, Any], entry: Mapping[str, Any]) -> str | None:
        return (
            parse_currency(entry.get("currency"))
            or parse_currency(payment.get("currency"))
            or parse_currency(_at(order, self._currency_path))
            or parse_currency(self._default_currency)
        )


def text(value: object) -> str:
    """A string, a whole number or an ObjectId as text of at most 200 characters, unchanged otherwise; else empty."""
    if isinstance(value, bool) or not isinstance(value, str | int | ObjectId):
        return ""
    if isinstance(value, int) and value.bit_length() > 64:
        return ""
    return str(value)[:_LONGEST]


def _digits(amount: object) -> str:
    number = parse_amount(amount)
    return "" if number is None else str(number)


def _utc(moment: datetime | None) -> str:
    if moment is None:
        return ""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else _NOTHING


def _at(order: Mapping[str, Any], path: str | None) -> object:
    found: object = order
    for name in path.split(".") if path else ():
        found = _mapping(found).get(name)
    return found if path else None


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise SettingsError("PAYLATCH_SHOP__TIMEZONE is not a time zone such as Asia/Kolkata") from None


def _name(value: object) -> str:
    """A name for the greeting. Anybody can order with anybody's address, so a name never carries a link into a mail."""
    name = " ".join(text(value).split())
    return "" if "://" in name or "www." in name.lower() else name


def _entry(notice: str, ref: str | None, payment: Mapping[str, Any]) -> Mapping[str, Any]:
    """The attempt, refund, dispute or review entry that the notice is about."""
    kind, names = _ENTRIES.get(notice, ("attempts", ("paymentId",)))
    wanted = ref if notice in _ENTRIES else payment.get("razorpayPaymentId")
    entries = payment.get(kind)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and isinstance(wanted, str) and wanted in _ids(entry, names):
            return entry
    return _NOTHING


def _ids(entry: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    ids = [text(entry.get(name)) for name in names]
    if names == ("ref",):  # reviews are named by reason and ref together
        ids = [f"{text(entry.get('reason'))}:{each}" for each in ids] + ids
    return [each for each in ids if each]


def _amount(notice: str, payment: Mapping[str, Any], entry: Mapping[str, Any]) -> object:
    """Rather none than a wrong one: the amount of a refund or dispute that is not found is not the order's."""
    if notice == "payment_completed":
        return _first(payment.get("amountPaid"), payment.get("amount"))
    if notice == "payment_refunded":
        return _first(payment.get("amountRefunded"), payment.get("amount"))
    if notice == "payment_failed":
        return _first(entry.get("amount"), payment.get("amount"))
    return entry.get("amount")


def _first(*values: object) -> object:
    return next((value for value in values if value is not None), None)


def _reason(entry: Mapping[str, Any]) -> object:
    error = _mapping(entry.get("error"))
    return entry.get("reason") or entry.get("reasonCode") or error.get("reason") or error.get("code")


def _payment_id(notice: str, ref: str, payment: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    if notice == "payment_failed" and ref:
        return ref
    own = entry.get("ref") if notice == "payment_review" else entry.get("paymentId")
    return text(own) or text(payment.get("razorpayPaymentId"))


def _method(payment: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """`card 4242`: the means of payment and the last digits where they are known."""
    source = entry if entry.get("method") else payment
    digits = text(_mapping(source.get("methodDetails")).get("last4"))
    return " ".join(part for part in (text(source.get("method")), digits) if part)
