"""The error tree of the product.

::

    AgentServeError            anything that we explain to a person
    +-- ConfigError            a file of the user's, or of ours, says something wrong
    +-- HistoryUnreadableError the database of finished requests cannot be read
    +-- CheckNotMadeError      whether settings would work could not be found out
    +-- PortTakenError         another process listens on our address
    +-- AddressRefusedError    an address other machines can reach, without an API key
    +-- EngineMissingError     no vLLM in this environment
    +-- EngineStartError       the engine could not be started; carries a Failure
    +-- StartAbortedError      the start was given up on request; not a failure

Every error is one sentence that says what is wrong, and one that says what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentserve.domain.failure import Failure


class AgentServeError(Exception):
    """An error that is shown to a person.

    Args:
        message: One sentence: what is wrong.
        hint: One sentence: what to do next. Empty when there is nothing to do.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(AgentServeError):
    """A configuration or preset file that cannot be used."""


class CheckNotMadeError(AgentServeError):
    """Whether settings would work could not be found out."""


class PortTakenError(AgentServeError):
    """Another process already listens on our address."""


class AddressRefusedError(AgentServeError):
    """Listening beyond this machine was asked for without an API key."""


class EngineMissingError(AgentServeError):
    """No vLLM is installed in this environment."""


class EngineStartError(AgentServeError):
    """The engine could not be started.

    Args:
        failure: What the log and the exception say about the cause.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause, failure.hint)
        self.failure = failure


class StartAbortedError(AgentServeError):
    """A start was given up because somebody asked for it."""
