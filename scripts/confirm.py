"""Ask before a command changes something."""

from __future__ import annotations

import sys

from models.errors import Refused


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask, unless told not to. Raises `Refused` when the answer is not yes or nobody can be asked."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise Refused("nobody is here to confirm: add --yes (or --dry-run to look only)")
    if input(f"{question} [y/N] ").strip().lower() not in {"y", "yes"}:
        raise Refused("nothing was changed")
