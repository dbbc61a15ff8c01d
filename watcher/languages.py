"""Which language a message is in: the customer's own where the order tells it, else the shop's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from babel import Locale, UnknownLocaleError

from models.errors import SettingsError
from watcher.particulars import at_path

if TYPE_CHECKING:
    from models.settings import Settings

FALLBACK = "en"
"""The language that every notice has words in."""
_SHOP_ONLY = frozenset({"admin"})
_TAG = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8}){0,3}")


@dataclass(frozen=True, slots=True)
class Language:
    """A language as messages need it."""

    locale: str
    """How amounts and times are written: `hi_IN`."""
    folders: tuple[str, ...]
    """Where its words are, the closest first: `hi_IN`, `hi`."""


class Languages:
    """The shop's language, and the customer's where an order tells it; raises `SettingsError` for an unknown locale."""

    def __init__(self, settings: Settings, always: object = None) -> None:
        """`always` counts instead of what orders say, where it is a language."""
        self._path = settings.notifications.language_path
        try:
            shop = Locale.parse(settings.shop.locale)
        except (ValueError, UnknownLocaleError):
            raise SettingsError("PAYLATCH_SHOP__LOCALE is not a locale such as en_IN") from None
        self.shop = Language(settings.shop.locale, (settings.shop.locale, *_language(shop).folders))
        self._country: str | None = shop.territory
        self._always = self._named(always)

    def of_customer(self, order: Mapping[str, Any], recipient: str) -> Language | None:
        """What the order says; None where it says nothing that is a language, and for the shop's own people."""
        if recipient in _SHOP_ONLY:
            return None
        return self._always or self._named(at_path(order, self._path))

    def _named(self, value: object) -> Language | None:
        """The language that `hi`, `hi-IN` or `hi_IN` stands for; without a country it is written as in the shop's.

        Failure policy: open. Whatever is no language is None: a message in the shop's language is better than none.
        """
        if not isinstance(value, str) or not _TAG.fullmatch(value.strip()):
            return None
        tag = value.strip().replace("-", "_")
        known = _parsed(tag)
        if known is not None and known.territory is None and self._country:
            known = _parsed(f"{tag}_{self._country}") or known
        return None if known is None else _language(known)


def _parsed(tag: str) -> Locale | None:
    try:
        return Locale.parse(tag)
    except (ValueError, UnknownLocaleError):
        return None


def _language(known: Locale) -> Language:
    """`zh_TW` is also known as `zh_Hant_TW`: both names are a folder's."""
    short = f"{known.language}_{known.territory}" if known.territory else known.language
    return Language(str(known), tuple(dict.fromkeys((str(known), short, known.language))))
