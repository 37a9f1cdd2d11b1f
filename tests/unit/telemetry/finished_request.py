"""One finished request of a real engine, as the engine reports it."""

from __future__ import annotations

import datetime

from agentserve.domain.request import RequestOutcome, RequestRecord

NOW_S = datetime.datetime(2026, 6, 15, 12, tzinfo=datetime.UTC).timestamp()
DAY_S = 86_400


def finished(
    *,
    at_s: float = NOW_S,
    agent: str | None = "opencode/1.2 x",
    cached: int | None = 600,
    ttft_s: float | None = 0.5,
    outcome: RequestOutcome = RequestOutcome.STOP,
) -> RequestRecord:
    return RequestRecord(
        request_id="chatcmpl-1",
        generation=3,
        route="/v1/chat/completions",
        agent=agent,
        finished_at_unix_s=at_s,
        outcome=outcome,
        choices=1,
        prompt_tokens=1_000,
        cached_tokens=cached,
        computed_tokens=None if cached is None else 1_000 - cached,
        generated_tokens=50,
        queued_s=0.01,
        ttft_s=ttft_s,
        decode_s=1.5,
        elapsed_s=2.0,
        preemptions=0,
    )
