"""Notices as messages: Jinja templates, the shop's own before the built-in ones (see `templates/README.md`).

Orders are data: they are handed to templates and never become part of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
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
    select_autoescape,
)
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.errors import SettingsError
from models.telemetry import Telemetry
from watcher.money import money
from watcher.particulars import Reader

if TYPE_CHECKING:
    from models.settings import Settings

__all__ = ["RenderError", "Rendered", "Renderer", "money"]

BUILT_IN = Path(__file__).parent / "templates"
FALLBACK_LANGUAGE = "en"
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


class RenderError(Exception):
    """There is no template for this notice, channel and recipient, or a built-in one failed."""


class Renderer:
    """Renders every notice for every channel; all templates are read and compiled once."""

    def __init__(self, settings: Settings, telemetry: Telemetry | None = None) -> None:
        """Raise `SettingsError`, with file and line, for a template of the shop's that Jinja cannot read."""
        self._reader = Reader(settings)
        self._languages = tuple(dict.fromkeys((self._reader.locale, self._reader.language, FALLBACK_LANGUAGE)))
        self._shop = {"name": settings.shop.name, "url": settings.shop.url or ""}
        self._telemetry = telemetry or Telemetry()
        built_in = _Folder(BUILT_IN)
        self._built_in = self._environment(built_in)
        self._own: Environment | None = None
        if folder := settings.notifications.templates:
            own = _Folder(folder)
            _check(folder, self._environment(own))
            self._own = self._environment(ChoiceLoader([own, built_in]))

    def render(
        self,
        notice: str,
        ref: str | None,
        channel: str,
        recipient: str,
        order: Mapping[str, Any],
        fact_at: datetime | None,
    ) -> Rendered:
        """The words of one notice for one recipient; raises `RenderError` where there is no template.

        Failure policy: open. When the shop's own template fails on this order, the built-in text goes out instead,
        since a plain message is worth more to a customer than none; `render.template_failed` tells the operator.
        """
        variables = {
            **asdict(self._reader.read(notice, ref, order, fact_at)),
            "notice": notice,
            "ref": ref or "",
            "recipient": recipient,
            "order": order,
            "shop": self._shop,
        }
        write = partial(self._rendered, notice, channel, recipient, variables)
        if self._own is not None:
            try:
                return write(self._own)
            except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
                failure = type(error).__name__
                self._telemetry.emit(
                    "render.template_failed", notice=notice, channel=channel, to=recipient, error=failure
                )
        try:
            return write(self._built_in)
        except TemplateNotFound:
            raise RenderError(f"no template for {notice} by {channel} to {recipient}") from None
        except Exception as error:  # noqa: BLE001 - whatever it was, its text may quote the order
            raise RenderError(f"the template for {notice} by {channel} failed: {type(error).__name__}") from None

    def _rendered(
        self, notice: str, channel: str, recipient: str, variables: Mapping[str, Any], templates: Environment
    ) -> Rendered:
        def part(suffix: str) -> str:
            names = self._names(notice + suffix, channel, recipient)
            return templates.select_template(names).render(variables)

        text = part(".txt")
        if channel in TITLE_FIRST:
            title, _, body = text.partition("\n")
            return Rendered(title, body.strip("\n"), None)
        subject = part(".subject.txt") if channel in WITH_SUBJECT else ""
        return Rendered(subject, text, part(".html") if channel in WITH_HTML else None)

    def _names(self, file: str, channel: str, recipient: str) -> list[str]:
        """Where to look: the recipient's own folder in every language first, so that nobody gets another's words."""
        folders = [f"{language}/{channel}/{recipient}" for language in self._languages]
        folders += [f"{language}/{channel}" for language in self._languages]
        return [f"{folder}/{file}" for folder in folders]

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
        environment.filters["money"] = partial(money, locale=self._reader.locale)
        environment.filters["moment"] = self._reader.moment
        environment.filters["line"] = _one_line
        return environment


class _Folder(FileSystemLoader):
    """Template files; line breaks around a subject belong to the file, not to the subject."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        """As the file has it, a subject without the white space around it."""
        source, path, fresh = super().get_source(environment, template)
        return source.strip() if template.endswith(".subject.txt") else source, path, fresh


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
