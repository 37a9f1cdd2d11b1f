"""Runs a real engine with an observer that writes everything down; see `recorded_engine`.

Run as `python -m tests.e2e.recording_app FD PRESET CACHE_DIR RUNTIME_DIR`. It pickles an `Observed`
to descriptor FD when the engine is ready, and again for each line on its input; at the end of its
input it ends. A line can ask for a loss of events first.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import msgspec

from agentserve.domain.cache_event import CacheEvents, CacheEventsLost
from agentserve.domain.lifecycle import EngineState
from agentserve.domain.preset import Preset
from agentserve.engine.front import Front
from agentserve.engine.guardian_link import GuardianLink
from agentserve.engine.vllm.backend import VllmBackend, VllmEngine
from tests.e2e.recorded_engine import KEYS, LOSE_EVENTS, Observed
from tests.harness.instance import START_TIMEOUT_S, free_port
from tests.harness.supervised import SETTLED, Supervised


def _main() -> None:
    fd, preset_json, cache_dir, folder = sys.argv[1:]
    os.set_inheritable(int(fd), False)
    preset = msgspec.json.decode(preset_json, type=Preset)
    runtime_dir = Path(folder)
    port = free_port()
    guardian = GuardianLink(f"test-{port}", runtime_dir, dict(os.environ))
    front = Front(lambda: b"{}", KEYS, isolate=True)
    whole = Supervised(VllmBackend(Path(cache_dir), guardian), runtime_dir, port, front=front)

    def observed() -> Observed:
        observer = whole.observer
        answers = [list(answer) for answer in observer.answers]
        decode = observer.facts[0].decode
        engine = whole.supervisor.engine
        assert engine is not None
        return Observed(
            port=whole.port,
            starts=list(observer.starts),
            first_tokens=list(observer.first_tokens),
            records=observer.records[: len(answers)],  # the serving loop adds an answer last
            answers=answers,
            facts=[msgspec.structs.replace(facts, decode=None) for facts in observer.facts],
            decoded=[decode(s.prompt_token_ids) if decode else "" for s in observer.starts],
            events=[
                event
                for delivery in observer.cache
                if isinstance(delivery, CacheEvents)
                for event in delivery.events
            ],
            batches_lost=sum(
                delivery.batches
                for delivery in observer.cache
                if not isinstance(delivery, CacheEvents)
            ),
            scheduler=engine.scheduler_facts,
            in_flight=list(engine.in_flight()),
        )

    def lose_events() -> None:
        engine = whole.supervisor.engine
        assert isinstance(engine, VllmEngine)
        engine._cache_reports._deliver(CacheEventsLost(generation=1, batches=1))

    whole.open()
    try:
        whole.supervisor.request_start(preset)
        change = whole.log.wait(lambda c: c.status.state in SETTLED, START_TIMEOUT_S)
        assert change.status.state is EngineState.READY, change.status.failure
        with os.fdopen(int(fd), "wb") as answers:
            pickle.dump(observed(), answers)
            answers.flush()
            for line in sys.stdin.buffer:
                if line == LOSE_EVENTS:
                    lose_events()
                pickle.dump(observed(), answers)
                answers.flush()
    finally:
        whole.close()
        guardian.close()
    # Executor threads of vLLM are no daemons.
    os._exit(0)


if __name__ == "__main__":
    _main()
