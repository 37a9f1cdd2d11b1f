"""What a request says about the session that it belongs to.

Owns the order of the evidence. It must not know which sessions there are.

The evidence, the best first:

1. The header `X-Session-ID`, which names a session.
2. `prompt_cache_key`. It names a prefix that may be shared: some clients send one for each
   conversation, others one for all of an app. Lineage tells conversations apart.
3. A session's id in `metadata`.
4. An id of a user, who may have several conversations: `user`, Anthropic's `metadata.user_id`.
   Lineage tells them apart.
5. Lineage alone.

Requests of different clients, API keys or cache salts never share a session.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from agentserve.domain.agent import client_name
from agentserve.domain.session import IdentitySource
from agentserve.telemetry.sessions.request_body import RequestBodyFacts


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request when it begins."""

    user_agent: str | None = None
    session_header: str | None = None
    key_name: str | None = None
    cache_salt: str | None = None
    facts: RequestBodyFacts | None = None
    """None where the body could not be read or kept."""


class Scope(NamedTuple):
    """Requests that differ in any of it are never of one session."""

    client: str | None
    key_name: str | None
    cache_salt: str | None
    source: IdentitySource
    given_id: str | None

    @property
    def names_session(self) -> bool:
        """Whether the id is a session's, not a user's or a shared prefix's."""
        return self.source in (IdentitySource.SESSION_HEADER, IdentitySource.METADATA)


def scope_of(request: SessionRequest) -> Scope:
    """Return the best evidence that a request gives."""
    facts = request.facts or RequestBodyFacts()
    given = (
        (IdentitySource.SESSION_HEADER, request.session_header),
        (IdentitySource.PROMPT_CACHE_KEY, facts.prompt_cache_key),
        (IdentitySource.METADATA, facts.metadata_session),
        (IdentitySource.USER, facts.user),
    )
    source, given_id = next(
        ((source, value) for source, value in given if value), (IdentitySource.LINEAGE, None)
    )
    client = client_name(request.user_agent)
    return Scope(client, request.key_name, request.cache_salt, source, given_id)
