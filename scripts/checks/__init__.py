"""What `paylatch doctor` looks at: settings alone, what is stored, and the servers that are not ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["ok", "warning", "WRONG"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line; something WRONG keeps a process from starting, a warning does not."""

    grade: Grade
    what: str
    says: str
