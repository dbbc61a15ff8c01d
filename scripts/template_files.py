"""Which templates there are and where each comes from: built in, or the shop's own folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from models.settings import ALERT_ROUTES, DEFAULT_ROUTES, Recipient
from watcher.render import WITH_HTML, WITH_SUBJECT

NOTICES = (*DEFAULT_ROUTES, *ALERT_ROUTES)
BUILT_IN, YOURS = "built-in", "yours"
EVERYBODY = "everybody else"
"""Those recipients who have no words of their own."""
_TEXT, _SUBJECT, _HTML = ".txt", ".subject.txt", ".html"
_PARTS = (_SUBJECT, _TEXT, _HTML)
_RECIPIENTS = (*get_args(Recipient), EVERYBODY)


@dataclass(frozen=True, slots=True)
class Message:
    """What the words are for."""

    notice: str
    channel: str
    language: str
    recipient: str

    def place(self) -> tuple[int, str, int, str]:
        """Notices in the order of their table, then channels, then whoever comes first."""
        return (
            NOTICES.index(self.notice),
            self.channel,
            _RECIPIENTS.index(self.recipient),
            self.language,
        )


@dataclass(frozen=True, slots=True)
class Files:
    """Part -> origin for each message, and the files of the shop's folder that no message is made of by itself."""

    messages: dict[Message, dict[str, str]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


def files(built_in: Path, own: Path | None) -> Files:
    """Everything that is there; the shop's file counts where both have one."""
    found = Files()
    for folder, origin in ((built_in, BUILT_IN), (own, YOURS)):
        for name in _names(folder) if folder else ():
            read = _read(name)
            if read is not None:
                message, part = read
                found.messages.setdefault(message, {})[part] = origin
            elif origin == YOURS:
                found.others.append(name)
    ordered = {message: found.messages[message] for message in sorted(found.messages, key=Message.place)}
    return Files(ordered, sorted(found.others))


def origin_of(parts: dict[str, str]) -> str:
    """`built-in`, `yours`, or which part is whose: a message of several files can be both."""
    if len(origins := set(parts.values())) == 1:
        return origins.pop()
    return "; ".join(f"{origin}: {', '.join(_of(parts, origin))}" for origin in (YOURS, BUILT_IN))


def _of(parts: dict[str, str], origin: str) -> Iterable[str]:
    return (part for part in _PARTS if parts.get(part) == origin)


def _names(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.suffix in {_TEXT, _HTML} and path.is_file():
            yield path.relative_to(folder).as_posix()


def _read(name: str) -> tuple[Message, str] | None:
    """What a file is for, and which part of it; None for a layout, a mistyped name and whatever else is there."""
    folders = name.split("/")
    file = folders.pop()
    part = next((part for part in _PARTS if file.endswith(part)), "")
    notice = file.removesuffix(part)
    recipient = folders[2] if len(folders) == 3 else EVERYBODY
    if len(folders) not in {2, 3} or notice not in NOTICES or recipient not in _RECIPIENTS:
        return None
    language, channel = folders[:2]
    used = part == _TEXT or channel in (WITH_SUBJECT if part == _SUBJECT else WITH_HTML)
    return (Message(notice, channel, language, recipient), part) if used else None
