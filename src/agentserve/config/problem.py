"""What is wrong with a file, as data.

A loader returns what it could read and a list of these; one broken file never hides another one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentserve.domain.errors import ConfigError
from agentserve.domain.text import printable

_MAX_CHARACTERS = 400


class ConfigProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong in one file."""

    path: Path
    line: int | None
    """Counts from 1; None when the problem has no place."""
    key: str = ""
    """Dotted key, empty when there is none."""
    message: str
    """What is wrong, without a full stop."""
    remedy: str = ""
    """What to write instead, without a full stop."""

    @property
    def sentence(self) -> str:
        """File, line, problem and remedy, safe to print."""
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        remedy = f"; {self.remedy}" if self.remedy else ""
        return printable(f"{place}: {self.message}{remedy}.", _MAX_CHARACTERS)

    def as_error(self) -> ConfigProblemError:
        """Turn the problem into an error, for callers that cannot go on."""
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        remedy = f"{self.remedy[:1].upper()}{self.remedy[1:]}." if self.remedy else ""
        return ConfigProblemError(
            printable(f"{place}: {self.message}.", _MAX_CHARACTERS),
            printable(remedy, _MAX_CHARACTERS) if remedy else "",
            problem=self,
        )


class ConfigProblemError(ConfigError):
    """A file that cannot be used at all.

    Args:
        message: One sentence: what is wrong.
        hint: One sentence: what to do next.
        problem: The same as data.
    """

    def __init__(self, message: str, hint: str, *, problem: ConfigProblem) -> None:
        super().__init__(message, hint)
        self.problem = problem
