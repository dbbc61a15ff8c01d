"""What commands that change many documents ask for: an age to choose them by, and whether it is really meant."""

from __future__ import annotations

import re
import sys
from datetime import timedelta

from models.errors import Refused, WrongArgument

_AGE = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def age(text: str) -> timedelta:
    """An age such as 30m, 12h or 7d. Raises `WrongArgument` for anything else."""
    found = _AGE.fullmatch(text)
    if not found:
        raise WrongArgument(f"{text!r} is no age: write 30s, 45m, 12h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask, unless told not to. Raises `Refused` when the answer is not yes or nobody can be asked."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise Refused("nobody is here to confirm: add --yes (or --dry-run to look only)")
    if input(f"{question} [y/N] ").strip().lower() not in {"y", "yes"}:
        raise Refused("nothing was changed")
