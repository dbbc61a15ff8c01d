"""Notices as messages: Jinja templates, the shop's own before the built-in ones (see `templates/README.md`).

Orders are data: they are handed to templates and never become part of one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import (
    BaseLoader,
    ChainableUndefined,
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    TemplateNotFound,
    TemplateSyntaxError,
    pass_context,
    select_autoescape,
)
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.errors import SettingsError
from models.telemetry import Telemetry
from watcher.languages import FALLBACK, Language, Languages
from watcher.money import money
from watcher.particulars import Reader

if TYPE_CHECKING:
    from models.settings import Settings

__all__ = ["RenderError", "Rendered", "Renderer", "money"]

BUILT_IN = Path(__file__).parent / "templates"
TITLE_FIRST = frozenset({"inapp", "apprise"})
"""Channels whose text has its title in the first line rather than in a file of its own."""
WITH_SUBJECT = frozenset({"email"})
WITH_HTML = frozenset({"email"})


@dataclass(frozen=True, slots=True)
class Rendered:
    """A notice in words; a line break that came from the order is still in the subject, for the channel to refuse."""

    subject: str
    text: str
    html: str | None
    language: str = field(default=FALLBACK, compare=False)
    """The folder that the text came from: `hi`."""


class RenderError(Exception):
    """There is no template for this notice, channel and recipient, or a built-in one failed."""


class Renderer:
    """Renders every notice for every channel; all templates are read and compiled once."""

    def __init__(self, settings: Settings, telemetry: Telemetry | None = None, language: object = None) -> None:
        """`language` counts instead of what orders say, where it is one.

        Raises `SettingsError`, with file and line, for a template of the shop's that Jinja cannot read.
        """
        self._languages = Languages(settings, language)
        self._reader = Reader(settings)
        self._shop = {"name": settings.shop.name, "url": settings.shop.url or ""}
        self._telemetry = telemetry or Telemetry()
        built_in = _Folder(BUILT_IN)
        self._built_in = self._environment(built_in)
        self._own: Environment | None = None
        self._folder = settings.notifications.templates
        if folder := self._folder:
            own = _Folder(folder)
            _check(folder, self._environment(own))
            self._own = self._environment(ChoiceLoader([own, built_in]))
        self._had = frozenset((self._own or self._built_in).list_templates(extensions=("txt",)))

    def render(
        self,
        notice: str,
        ref: str | None,
        channel: str,
        recipient: str,
        order: Mapping[str, Any],
        fact_at: datetime | None,
    ) -> Rendered:
        """The words of one notice for one recipient, in the customer's language where the order tells it.

        Raises `RenderError` where there is no template.

        Failure policy: open. When the shop's own template fails on this order, the built-in text goes out instead,
        since a plain message is worth more to a customer than none; `render.template_failed` tells the operator.
        """
        locale, languages = self._spoken(notice, channel, recipient, order)
        variables = {
            **asdict(self._reader.in_locale(locale).read(notice, ref, order, fact_at)),
            "locale": locale,
            "notice": notice,
            "ref": ref or "",
            "recipient": recipient,
            "order": order,
            "shop": self._shop,
        }
        write = partial(self._rendered, notice, channel, (languages, recipient), variables)
        if self._own is not None:
            try:
                return write(self._own)
            except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
                said = {"notice": notice, "channel": channel, "to": recipient, "error": type(error).__name__}
                self._telemetry.emit("render.template_failed", **said, at=self._place(error))
        try:
            return write(self._built_in)
        except TemplateNotFound:
            raise RenderError(f"no template for {notice} by {channel} to {recipient}") from None
        except Exception as error:  # noqa: BLE001 - whatever it was, its text may quote the order
            raise RenderError(f"the template for {notice} by {channel} failed: {type(error).__name__}") from None

    def _spoken(
        self, notice: str, channel: str, recipient: str, order: Mapping[str, Any]
    ) -> tuple[str, tuple[str, ...]]:
        """The locale of amounts and times, and the languages to look for words in, best first.

        A message whose text is not to be had in the customer's language is in the shop's language as a whole.
        """
        shop = self._languages.shop
        own = self._languages.of_customer(order, recipient)
        if own is None or self._had.isdisjoint(_names(own.folders, channel, recipient, f"{notice}.txt")):
            own = Language(shop.locale, ())
        return own.locale, tuple(dict.fromkeys((*own.folders, *shop.folders, FALLBACK)))

    def _rendered(
        self,
        notice: str,
        channel: str,
        to: tuple[tuple[str, ...], str],
        variables: Mapping[str, Any],
        templates: Environment,
    ) -> Rendered:
        def part(suffix: str) -> tuple[str, str]:
            template = templates.select_template(_names(to[0], channel, to[1], notice + suffix))
            return template.render(variables), (template.name or "").partition("/")[0]

        text, language = part(".txt")
        if channel in TITLE_FIRST:
            title, _, body = text.partition("\n")
            return Rendered(title, body.strip("\n"), None, language)
        subject = part(".subject.txt")[0] if channel in WITH_SUBJECT else ""
        return Rendered(subject, text, part(".html")[0] if channel in WITH_HTML else None, language)

    def _environment(self, loader: BaseLoader) -> Environment:
        environment = ImmutableSandboxedEnvironment(
            loader=loader,
            autoescape=select_autoescape(enabled_extensions=("html",), default=False, default_for_string=False),
            undefined=ChainableUndefined,
            finalize=_nothing_for_none,
            trim_blocks=True,
            lstrip_blocks=True,
            cache_size=-1,
            auto_reload=False,
        )
        environment.filters["money"] = self._money
        environment.filters["moment"] = self._moment
        environment.filters["line"] = _one_line
        return environment

    def _place(self, error: Exception) -> str:
        """The template's file and line in which it failed, since Jinja writes them into the traceback."""
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if self._folder and Path(frame.filename).is_relative_to(self._folder)]
        return f"{ours[-1].filename}, line {ours[-1].lineno}" if ours else ""

    @pass_context
    def _money(self, context: Context, amount: object, currency: object) -> str:
        return money(amount, currency, context.get("locale", self._reader.locale))

    @pass_context
    def _moment(self, context: Context, value: object) -> str:
        return self._reader.in_locale(context.get("locale", self._reader.locale)).moment(value)


class _Folder(FileSystemLoader):
    """Template files; line breaks around a subject belong to the file, not to the subject."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        """As the file has it, a subject without the white space around it."""
        source, path, fresh = super().get_source(environment, template)
        return source.strip() if template.endswith(".subject.txt") else source, path, fresh


def _names(languages: tuple[str, ...], channel: str, recipient: str, file: str) -> list[str]:
    """Where to look: the recipient's own folder in every language first, so that nobody gets another's words."""
    folders = [f"{language}/{channel}/{recipient}" for language in languages]
    folders += [f"{language}/{channel}" for language in languages]
    return [f"{folder}/{file}" for folder in folders]


def _nothing_for_none(value: object) -> object:
    return "" if value is None else value


def _one_line(value: object) -> str:
    """The value in one line, however an order has it: what channels with a value per line cannot do without."""
    return " ".join(str(_nothing_for_none(value)).split())


def _check(folder: Path, environment: Environment) -> None:
    """Compile all of the shop's templates; raises `SettingsError` for the first that does not."""
    setting = "PAYLATCH_NOTIFICATIONS__TEMPLATES"
    if not folder.is_dir():
        raise SettingsError(f"{setting} is not a folder: {folder}")
    for name in environment.list_templates(extensions=("txt", "html")):
        try:
            environment.get_template(name)
        except TemplateSyntaxError as error:
            raise SettingsError(f"{setting}: {folder / name}, line {error.lineno}: {error.message}") from None
        except (UnicodeDecodeError, OSError):
            raise SettingsError(f"{setting}: {folder / name} cannot be read as UTF-8") from None
