"""From the exception that ended an engine to the `Failure` that people see.

Owns which exceptions explain themselves and which need the log. It does not know states.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence

from agentserve.domain.errors import AgentServeError, EngineStartError
from agentserve.domain.failure import Failure, explain_failure, mask_secrets
from agentserve.domain.text import printable


def failure_from_error(error: BaseException, phase: str | None) -> Failure | None:
    """Make a failure from an error of ours that says what is wrong and what to do.

    Args:
        error: What ended the engine.
        phase: Start phase, `ready`, or None.

    Returns:
        The failure, or None when the log has to be asked.
    """
    if isinstance(error, EngineStartError):
        return error.failure
    if isinstance(error, AgentServeError) and error.hint:
        return stated_failure(
            _kind(error), "The engine did not start", error.message, error.hint, phase
        )
    return None


def failure_from_log(error: BaseException, phase: str | None, lines: Sequence[str]) -> Failure:
    """Explain an error by what the engine's processes printed.

    Args:
        error: What reached the app.
        phase: Start phase, `ready`, or None.
        lines: The log of this engine, oldest first.
    """
    if isinstance(error, AgentServeError):
        # A sentence; its class would only be in the way.
        text = error.message
    else:
        text = "".join(traceback.format_exception(error))
    return explain_failure(lines, phase=phase, exception_text=text)


def stated_failure(
    kind: str, title: str, cause: str, hint: str, phase: str | None = None
) -> Failure:
    """Make a failure whose reason is known; its texts may quote what came from outside."""
    return Failure(
        kind=kind,
        title=title,
        cause=printable(mask_secrets(cause)),
        hint=printable(mask_secrets(hint)),
        phase=phase,
    )


def _kind(error: AgentServeError) -> str:
    words = re.findall(r"[A-Z][a-z]+", type(error).__name__.removesuffix("Error"))
    return "_".join(words).lower()
