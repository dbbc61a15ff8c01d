"""Kinds of options that several commands take; a value that does not fit is refused before the command begins."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

Flag = Annotated[bool, Parameter(negative=())]
"""On when it is named; there is no `--no-...`."""
AsJson = Annotated[bool, Parameter(name="--json", negative=())]
Share = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]
Count = Annotated[int, Parameter(validator=Number(gte=0))]
Positive = Annotated[int, Parameter(validator=Number(gte=1))]
Rate = Annotated[float, Parameter(validator=Number(gt=0))]
Seconds = Annotated[float, Parameter(validator=Number(gte=0))]
Port = Annotated[int, Parameter(validator=Number(gte=1, lte=65535))]
