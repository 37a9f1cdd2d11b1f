"""The streaming client: bursts of parallel completions, and what each token waited.

It speaks HTTP itself, a line at a time: a client library would use more of the processor than the
servers differ by. It knows nothing about who serves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from agentserve.domain.statistics import nearest_rank
from bench.waiting import BenchError

STREAMS = 4
TOKENS = 128
_PROMPT_TOKENS = 48
_BURST_DEADLINE_S = 60.0
_LINE_LIMIT_BYTES = 1 << 20
_DATA = b"data: "
_EVENT = _DATA + b"{"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of bursts measured, on the client's side."""

    bursts: int
    output_tokens: int
    elapsed_s: float
    itl_p99_s: float
    """Of the gaps between two events of one stream, over all streams and bursts of the round."""
    itl_p50_s: float
    ttft_p50_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second, waiting for the first token included."""
        return self.output_tokens / self.elapsed_s


class _Stream(msgspec.Struct, frozen=True):
    """One answered request."""

    ttft_s: float
    gaps_s: list[float]
    output_tokens: int


class _Usage(msgspec.Struct):
    completion_tokens: int


class _UsageEvent(msgspec.Struct):
    usage: _Usage | None = None


def warm_up(port: int, model: str, *, seconds: float) -> None:
    """Send bursts without measuring: the first ones import, compile and allocate.

    Args:
        port: Where the server listens on this machine.
        model: Served name.
        seconds: How long bursts are begun.

    Raises:
        BenchError: An answer is an error or has too few tokens.
    """
    asyncio.run(_bursts(port, model, seconds))


def run_load(port: int, model: str, *, seconds: float) -> Load:
    """Send bursts, one after the other, until `seconds` have passed.

    Args:
        port: Where the server listens on this machine.
        model: Served name.
        seconds: How long bursts are begun.

    Raises:
        BenchError: An answer is an error or has too few tokens.
    """
    return summarize(*asyncio.run(_bursts(port, model, seconds)))


async def _bursts(port: int, model: str, seconds: float) -> tuple[list[_Stream], int, float]:
    """Return all streams, the number of bursts and the seconds that these took."""
    streams: list[_Stream] = []
    bursts, elapsed_s = 0, 0.0
    while elapsed_s < seconds:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(_BURST_DEADLINE_S):
                streams += await asyncio.gather(
                    *(_stream(port, _request(model, number)) for number in range(STREAMS))
                )
        except TimeoutError:
            raise BenchError(f"a burst was not answered within {_BURST_DEADLINE_S:g} s") from None
        elapsed_s += time.monotonic() - began_s
        bursts += 1
    return streams, bursts, elapsed_s


def summarize(streams: Sequence[_Stream], bursts: int, elapsed_s: float) -> Load:
    """Reduce the streams of a round to its figures.

    Raises:
        BenchError: No stream had two events, so there is no gap.
    """
    gaps_s = sorted(gap for stream in streams for gap in stream.gaps_s)
    ttfts_s = sorted(stream.ttft_s for stream in streams)
    p99, p50, ttft = (
        nearest_rank(gaps_s, 0.99),
        nearest_rank(gaps_s, 0.5),
        nearest_rank(ttfts_s, 0.5),
    )
    if p99 is None or p50 is None or ttft is None:
        raise BenchError("every answer came in one piece")
    return Load(
        bursts=bursts,
        output_tokens=sum(stream.output_tokens for stream in streams),
        elapsed_s=elapsed_s,
        itl_p99_s=p99,
        itl_p50_s=p50,
        ttft_p50_s=ttft,
    )


def _request(model: str, number: int) -> bytes:
    body = msgspec.json.encode(
        {
            "model": model,
            # Another beginning for each stream, so that none takes over another one's prefill.
            "prompt": [(number * 31 + 7 * i) % 300 + 20 for i in range(_PROMPT_TOKENS)],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _stream(port: int, request: bytes) -> _Stream:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LINE_LIMIT_BYTES)
    try:
        sent_s = time.monotonic()
        writer.write(request)
        status = await reader.readline()
        if b" 200 " not in status:
            rest = await reader.read(2_000)
            raise BenchError((status + rest).decode("utf-8", "replace"))
        # Lengths of chunks stand in lines of their own, and no event begins like one.
        arrivals_s: list[float] = []
        last = b""
        while line := await reader.readline():
            if line.startswith(_EVENT):
                arrivals_s.append(time.monotonic())
                last = line
    finally:
        writer.close()
    # The last event carries the usage and no token, so it is no arrival.
    usage = msgspec.json.decode(last.removeprefix(_DATA), type=_UsageEvent).usage if last else None
    if usage is None or usage.completion_tokens != TOKENS:
        raise BenchError(f"a stream ended with {usage} instead of {TOKENS} tokens")
    gaps_s = [later - earlier for earlier, later in pairwise(arrivals_s[:-1])]
    return _Stream(arrivals_s[0] - sent_s, gaps_s, usage.completion_tokens)
