"""vLLM's engine client, watched: one record per request, whatever becomes of it.

Imports vLLM: only `backend` may import this module, after a start was asked for. Prompts pass
through here and are neither kept nor written anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextvars import ContextVar
from typing import Any

from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from agentserve.domain.request import (
    FirstToken,
    InFlightRequest,
    RequestOrigin,
    RequestOutcome,
    RequestRecord,
    RequestStart,
)
from agentserve.domain.sample import EngineObserver
from agentserve.engine.front import REQUEST_BODY, REQUEST_ORIGIN

_TOKEN_TYPECODE = "I"


class WatchedRequest:
    """What is known of one `generate` call while it runs. Written on the serving loop only."""

    _numbers = itertools.count(1)
    """Of the class: numbers are unique over all engines of this app."""

    def __init__(
        self, request_id: str, origin: RequestOrigin | None, choices: int, *, deltas: bool
    ) -> None:
        self.number = next(self._numbers)
        self.request_id = request_id
        self.engine_request_id: str | None = None
        """The scheduler's id, of the first choice where there are several."""
        self.origin = origin
        self.choices = choices
        self.deltas = deltas
        """Whether each output carries only what is new in it."""
        self.started_at_s = time.monotonic()
        self.prompt_token_ids: Sequence[int] = ()
        self.prompt_tokens = 0
        self.cache_salt: str | None = None
        self.answer_token_ids: Sequence[int] = ()
        self.cached_tokens: int | None = None
        self.generated_tokens = 0
        self.outcome = RequestOutcome.ERROR
        self.ttft_s: float | None = None
        self.queued_s: float | None = None
        self.decode_s: float | None = None
        self.preemptions: int | None = None
        self.first_token_reported = False

    @property
    def counted(self) -> bool:
        """False for our own smoke prompt."""
        return self.origin is None or not self.origin.internal


_CURRENT: ContextVar[WatchedRequest | None] = ContextVar("watched_request", default=None)


class WatchedAsyncLLM(AsyncLLM):  # type: ignore[misc]
    """`AsyncLLM` that reports each request to an observer.

    `watch` must be called once before the first request.
    """

    _observer: EngineObserver | None = None
    _generation = 0

    def watch(self, observer: EngineObserver, generation: int) -> None:
        """Report requests to `observer`, as of `generation`."""
        self._observer = observer
        self._generation = generation
        self._requests: dict[int, WatchedRequest] = {}

    async def add_request(self, *args: Any, **kwargs: Any) -> Any:
        """Add a request as vLLM does, note its id in the scheduler, and report its start."""
        queue = await super().add_request(*args, **kwargs)
        if (watched := _CURRENT.get()) is not None:
            # vLLM makes one request of each choice (`ParentRequest.get_child_info`).
            several = watched.choices > 1
            watched.engine_request_id = f"0_{queue.request_id}" if several else queue.request_id
            self._report_start(watched)
        return queue

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        **kwargs: Any,
    ) -> AsyncGenerator[Any, None]:
        """Generate as vLLM does, and report a record at the end."""
        watched = WatchedRequest(
            request_id,
            REQUEST_ORIGIN.get(),
            sampling_params.n,
            deltas=sampling_params.output_kind is RequestOutputKind.DELTA,
        )
        if isinstance(prompt, dict):
            prompt = _salted(prompt, watched.origin)
            watched.prompt_token_ids = prompt.get("prompt_token_ids") or ()
            watched.prompt_tokens = len(watched.prompt_token_ids)
            watched.cache_salt = prompt.get("cache_salt")
        self._requests[watched.number] = watched
        finished_choices: dict[int, str] = {}
        token = _CURRENT.set(watched)
        try:
            # Without aclosing an abort would reach the engine only at garbage collection.
            async with contextlib.aclosing(
                super().generate(prompt, sampling_params, request_id, **kwargs)
            ) as outputs:
                try:
                    async for output in outputs:
                        self._observe(watched, output, finished_choices)
                        yield output
                except (asyncio.CancelledError, GeneratorExit):
                    self._observe_state(watched)
                    watched.outcome = RequestOutcome.ABORTED
                    raise
            watched.outcome = _outcome(finished_choices)
        finally:
            with contextlib.suppress(ValueError):  # closed from another context: nothing to reset
                _CURRENT.reset(token)
            del self._requests[watched.number]
            self._report(watched)

    def in_flight(self) -> tuple[InFlightRequest, ...]:
        """Requests that are not finished; from any thread."""
        now_s = time.monotonic()
        return tuple(
            self._in_flight(watched, now_s)
            for watched in tuple(self._requests.values())
            if watched.counted
        )

    def observe_first_tokens(self) -> None:
        """Report requests that got their first token; to be called after a step that brought one.

        Answers that are not streamed reach `generate` only when complete, so their first token is
        looked up in vLLM's own state.
        """
        for watched in self._requests.values():
            if not watched.first_token_reported:
                self._observe_state(watched)
                self._report_first_token(watched)

    def _state(self, watched: WatchedRequest) -> Any:
        if watched.engine_request_id is None:
            return None
        return self.output_processor.request_states.get(watched.engine_request_id)

    def _observe_state(self, watched: WatchedRequest) -> None:
        state = self._state(watched)
        if state is None or state.is_prefilling:
            return
        watched.cached_tokens = state.num_cached_tokens
        self._observe_metrics(watched, state.stats)
        if state.stats is not None and watched.choices == 1:
            watched.generated_tokens = state.stats.num_generation_tokens

    def _observe(
        self,
        watched: WatchedRequest,
        output: Any,
        finished_choices: dict[int, str],
    ) -> None:
        if output.prompt_token_ids is not None:
            watched.prompt_tokens = len(output.prompt_token_ids)
        # Of several choices an output does not say whose figure it is: the first choice's comes
        # from vLLM's own state, or stays unknown.
        if output.num_cached_tokens is not None and watched.choices == 1:
            watched.cached_tokens = output.num_cached_tokens
        self._observe_metrics(watched, output.metrics)
        for choice in output.outputs:
            if choice.finish_reason is not None:
                finished_choices[choice.index] = choice.finish_reason
            if watched.choices == 1:
                _collect(watched, choice.token_ids)
        if watched.choices == 1 and output.metrics is not None:
            watched.generated_tokens = output.metrics.num_generation_tokens
        else:
            watched.generated_tokens += sum(len(choice.token_ids) for choice in output.outputs)
        self._report_first_token(watched)

    @staticmethod
    def _observe_metrics(watched: WatchedRequest, metrics: Any) -> None:
        """Take over vLLM's stamps of a request (`RequestStateStats`); 0 there means 'not yet'."""
        if metrics is None:
            return
        if metrics.first_token_latency > 0:
            watched.ttft_s = metrics.first_token_latency
        if metrics.scheduled_ts > 0 and metrics.queued_ts > 0:
            watched.queued_s = metrics.scheduled_ts - metrics.queued_ts
        if metrics.last_token_ts > 0 and metrics.first_token_ts > 0:
            watched.decode_s = metrics.last_token_ts - metrics.first_token_ts
        watched.preemptions = getattr(metrics, "num_preemptions", None)

    def _report_start(self, watched: WatchedRequest) -> None:
        if self._observer is None or not watched.counted or watched.engine_request_id is None:
            return
        body = REQUEST_BODY.get()
        self._observer.request_started(
            RequestStart(
                number=watched.number,
                generation=self._generation,
                engine_request_id=watched.engine_request_id,
                origin=watched.origin,
                at_unix_s=time.time(),
                choices=watched.choices,
                prompt_token_ids=watched.prompt_token_ids,
                cache_salt=watched.cache_salt,
                body=body.content() if body is not None else None,
            )
        )

    def _report_first_token(self, watched: WatchedRequest) -> None:
        if watched.first_token_reported or watched.ttft_s is None:
            return
        watched.first_token_reported = True
        if self._observer is not None and watched.counted:
            self._observer.first_token(
                FirstToken(
                    number=watched.number,
                    ttft_s=watched.ttft_s,
                    queued_s=watched.queued_s,
                    cached_tokens=watched.cached_tokens,
                    prompt_tokens=watched.prompt_tokens,
                    preemptions=watched.preemptions,
                )
            )

    def _report(self, watched: WatchedRequest) -> None:
        if self._observer is None or not watched.counted:
            return
        cached = watched.cached_tokens if watched.ttft_s is not None else None
        self._observer.request_finished(
            RequestRecord(
                number=watched.number,
                request_id=watched.request_id,
                generation=self._generation,
                route=watched.origin.route if watched.origin else None,
                agent=watched.origin.user_agent if watched.origin else None,
                finished_at_unix_s=time.time(),
                outcome=watched.outcome,
                choices=watched.choices,
                prompt_tokens=watched.prompt_tokens,
                cached_tokens=cached,
                computed_tokens=None if cached is None else watched.prompt_tokens - cached,
                generated_tokens=watched.generated_tokens,
                queued_s=watched.queued_s,
                ttft_s=watched.ttft_s,
                decode_s=watched.decode_s,
                elapsed_s=time.monotonic() - watched.started_at_s,
                preemptions=watched.preemptions,
            ),
            watched.answer_token_ids,
        )

    def _in_flight(self, watched: WatchedRequest, now_s: float) -> InFlightRequest:
        state = self._state(watched)
        stats = getattr(state, "stats", None)
        decoding = state is not None and not state.is_prefilling
        cached = state.num_cached_tokens if decoding else None
        return InFlightRequest(
            number=watched.number,
            request_id=watched.engine_request_id or watched.request_id,
            route=watched.origin.route if watched.origin else None,
            agent=watched.origin.user_agent if watched.origin else None,
            phase="decode" if decoding else "waiting",
            prompt_tokens=watched.prompt_tokens,
            cached_tokens=cached,
            computed_tokens=None if cached is None else watched.prompt_tokens - cached,
            generated_tokens=stats.num_generation_tokens if stats is not None else 0,
            elapsed_s=now_s - watched.started_at_s,
        )


def _salted(prompt: dict[str, Any], origin: RequestOrigin | None) -> dict[str, Any]:
    """A rendered prompt with the salt of the API key, if it has one.

    A salt of the client's own stays in force within it.
    """
    if origin is None or (ours := origin.cache_salt) is None:
        return prompt
    if (clients := prompt.get("cache_salt")) is not None:
        ours = hashlib.sha256(f"{ours}:{clients}".encode()).hexdigest()
    return {**prompt, "cache_salt": ours}


def _collect(watched: WatchedRequest, token_ids: Sequence[int]) -> None:
    """Keep the answer so far, without a copy of what was there before."""
    if not watched.deltas:
        watched.answer_token_ids = token_ids
        return
    if not isinstance(watched.answer_token_ids, array):
        watched.answer_token_ids = array(_TOKEN_TYPECODE)
    watched.answer_token_ids.extend(token_ids)


def _outcome(finished_choices: dict[int, str]) -> RequestOutcome:
    reasons = set(finished_choices.values())
    for reason, outcome in (
        ("error", RequestOutcome.ERROR),
        ("abort", RequestOutcome.ABORTED),
        ("length", RequestOutcome.LENGTH),
        ("stop", RequestOutcome.STOP),
    ):
        if reason in reasons:
            return outcome
    return RequestOutcome.ERROR
