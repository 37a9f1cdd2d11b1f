"""`status`: asks a running instance for its snapshot."""

from __future__ import annotations

import argparse
import sys

import msgspec

from agentserve.cli import exit_codes
from agentserve.config.api_keys import API_KEY_VARIABLE
from agentserve.config.listen_address import resolve_listen_address
from agentserve.config.paths import app_paths
from agentserve.config.settings import load_settings
from agentserve.domain.errors import AgentServeError
from agentserve.domain.snapshot import Snapshot, decode_snapshot

_TIMEOUT_S = 5.0
_ROUTE = "/agentserve/v1/snapshot"
_HINTS = {
    401: f"Set {API_KEY_VARIABLE}.",
    403: f"Set {API_KEY_VARIABLE} to the owner's key: the first one that the instance has.",
}


def status(arguments: argparse.Namespace) -> int:
    """Print what a running instance knows.

    Returns:
        0, or 1 when nobody answers.
    """
    import httpx

    settings, _ = load_settings(app_paths())
    address = resolve_listen_address(settings.server, port=arguments.port)
    url = (arguments.url or address.url).rstrip("/")
    headers = {"Authorization": f"Bearer {address.api_key}"} if address.api_key else {}
    try:
        answer = httpx.get(url + _ROUTE, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
        answer.raise_for_status()
        snapshot = decode_snapshot(answer.content)
    except httpx.HTTPStatusError as error:
        raise AgentServeError(
            f"{url} answered HTTP {error.response.status_code}.",
            _HINTS.get(error.response.status_code, ""),
        ) from error
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise AgentServeError(
            f"{url!r} is not an address.", f"Write it as {address.url} is written."
        ) from error
    except httpx.HTTPError as error:
        raise AgentServeError(
            f"Nobody answers at {url}: {str(error).rstrip('.')}.",
            "Start agentserve-tui, or name another --port or --url.",
        ) from error
    except msgspec.DecodeError as error:
        raise AgentServeError(
            f"{url} is not an agentserve-tui: {str(error).rstrip('.')}.",
            "Check --port or --url.",
        ) from error
    if arguments.json:
        sys.stdout.buffer.write(answer.content + b"\n")
    else:
        print("\n".join(_lines(snapshot)))
    return exit_codes.OK


def _lines(snapshot: Snapshot) -> list[str]:
    engine, kv, prefix = snapshot.engine, snapshot.kv, snapshot.prefix_cache
    latency, throughput = snapshot.latency, snapshot.throughput
    lines = [
        f"engine    {engine.state}" + (f" ({engine.phase})" if engine.phase else ""),
        f"preset    {engine.preset or '-'}",
        f"model     {engine.model or '-'}",
        f"url       {engine.endpoint}",
    ]
    if engine.failure is not None:
        lines += [f"cause     {engine.failure.cause}", f"next      {engine.failure.hint}"]
    if engine.uptime_s is not None:
        lines += [
            f"uptime    {engine.uptime_s:.0f} s",
            f"requests  {_count(throughput.running_requests)} running, "
            f"{_count(throughput.waiting_requests)} waiting",
            f"KV pool   {_percent(kv.usage_fraction)} of {_count(kv.capacity_tokens)} tokens",
            f"prefix    {_percent(prefix.hit_rate_recent)} hit "
            f"(last {prefix.recent_requests} requests)",
            f"TTFT      p50 {_seconds(latency.ttft_s.p50)}, p95 {_seconds(latency.ttft_s.p95)} "
            f"(n {latency.ttft_s.n}, {latency.window_s:.0f} s)",
            f"ITL       p50 {_seconds(latency.itl_s.p50)}, p95 {_seconds(latency.itl_s.p95)}, "
            f"p99 {_seconds(latency.itl_s.p99)} (n {latency.itl_s.n})",
        ]
    return lines


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.1f} ms"
