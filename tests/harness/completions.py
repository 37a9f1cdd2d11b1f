"""Asking a running engine, and comparing what it answers warm and cold."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from agentserve.engine.demo_models.text import SENTENCES

MARGIN_EPSILON = 0.1
"""Below this distance of the two likeliest tokens, correct paths may choose differently."""
LOGPROB_TOLERANCE = 0.1
MIN_COMPARED = 12


class Answer(msgspec.Struct, frozen=True):
    """A greedy completion with what is needed to compare it."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    """Distance in log-probability of the two likeliest tokens at each position."""
    cached_tokens: int


def long_prompt(marker: str, sentences: int = 230) -> str:
    """About 2,900 tokens that begin with a word which the hybrid model keeps in mind."""
    words = [SENTENCES[(7 * i) % len(SENTENCES)] for i in range(sentences)]
    return f"The word is {marker} today. " + " ".join(words)


def complete(client: httpx.Client, model: str, prompt: str, max_tokens: int = 48) -> Answer:
    """Complete a prompt greedily."""
    answer = client.post(
        "/v1/completions",
        json={
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": 2,
            "ignore_eos": True,
        },
    )
    answer.raise_for_status()
    body = answer.json()
    logprobs = body["choices"][0]["logprobs"]
    details = body["usage"]["prompt_tokens_details"] or {}
    return Answer(
        tokens=tuple(logprobs["tokens"]),
        logprobs=tuple(logprobs["token_logprobs"]),
        margins=tuple(_margin(top) for top in logprobs["top_logprobs"]),
        cached_tokens=details.get("cached_tokens") or 0,
    )


def assert_same_answer(cold: Answer, warm: Answer) -> None:
    """Compare token by token; the texts may part only where the choice was not clear."""
    compared = 0
    for position, margin in enumerate(cold.margins):
        if cold.tokens[position] != warm.tokens[position]:
            assert margin < MARGIN_EPSILON, f"another token at {position}, margin {margin}"
            break
        difference = abs(cold.logprobs[position] - warm.logprobs[position])
        assert difference <= LOGPROB_TOLERANCE, f"log-probability off by {difference} at {position}"
        compared += 1
    assert compared >= MIN_COMPARED, f"only {compared} positions could be compared"


def chat(client: httpx.Client, model: str, text: str, **options: Any) -> httpx.Response:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "max_tokens": 24, **options}
    return client.post("/v1/chat/completions", json=body)


SYSTEM = "You work on one repository and answer in short sentences. " * 60


def _margin(top: dict[str, float]) -> float:
    likeliest = sorted(top.values(), reverse=True)[:2]
    return likeliest[0] - likeliest[1] if len(likeliest) == 2 else float("inf")
