"""Messages whose wording is approved at a provider: only the values of its variables are sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from models.errors import SettingsError
from models.settings import DEFAULT_ROUTES
from watcher.channels import Message, NoAddress, Rejected
from watcher.channels.phone import e164


def values(text: str) -> list[str]:
    """The variables' values in order: the lines that are not empty, without tabs and rows of spaces."""
    return [value for line in text.splitlines() if (value := " ".join(line.split()))]


def notice_of(message: Message) -> str:
    """Which notice a message is; raises `Rejected` for a stored row that somebody edited."""
    notice = message.data.get("notice")
    if not isinstance(notice, str):
        raise Rejected("no_notice")
    return notice


def in_language(message: Message, named: Mapping[str, str], otherwise: str) -> str:
    """What is named for the message's language, `hi` also serving `hi_IN`; `otherwise` where nothing is."""
    language = message.data.get("language")
    if not isinstance(language, str):
        return otherwise
    return named.get(language) or named.get(language.partition("_")[0]) or otherwise


def number_of(message: Message) -> str:
    """Whom a message goes to, checked once more; raises `Rejected` for a stored row that somebody edited."""
    try:
        return e164(message.address)
    except NoAddress as error:
        raise Rejected(error.reason) from None


def require_notices(setting: str, named: Mapping[str, object], wanted: Iterable[str] = ()) -> None:
    """Raise `SettingsError` when `named` names a notice that does not exist, or lacks one of the `wanted`."""
    if unknown := sorted(set(named) - set(DEFAULT_ROUTES)):
        raise SettingsError(f"{setting} names {unknown[0]!r}; the notices are {', '.join(DEFAULT_ROUTES)}")
    if missing := sorted(set(wanted) - set(named)):
        raise SettingsError(f"{setting} names no template for {', '.join(missing)}, which its routes send")
