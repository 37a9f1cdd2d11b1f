"""`serve`: the engine without a screen."""

from __future__ import annotations

import argparse
import signal
import threading

import msgspec

from agentserve.cli import exit_codes
from agentserve.cli.leaving import leave
from agentserve.cli.product import Product, ProductOptions
from agentserve.domain.errors import EngineMissingError
from agentserve.domain.lifecycle import EngineState, StartPhase, StateChanged

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StateLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `serve --json`."""

    time: float
    state: EngineState
    phase: StartPhase | None
    generation: int
    preset: str | None
    endpoint: str
    cause: str | None
    hint: str | None


def serve(arguments: argparse.Namespace) -> int:
    """Run the engine until a signal comes or it fails.

    Returns:
        0 after a signal; 3 when the engine did not start, or died.
    """
    product = Product(
        ProductOptions(
            preset=arguments.preset,
            host=arguments.host,
            port=arguments.port,
            simulate=arguments.simulate,
        )
    )
    if (missing := product.engine_missing) is not None:
        product.close()
        raise EngineMissingError(missing)
    ended = threading.Event()
    failed = False

    def on_change(change: StateChanged) -> None:
        nonlocal failed
        _print_change(product, change, as_json=arguments.json)
        if change.status.state is EngineState.FAILED:
            failed = True
            ended.set()

    for signum in _STOP_SIGNALS:
        signal.signal(signum, lambda *_: ended.set())
    product.open()
    product.on_state_change(on_change)
    product.start()
    ended.wait()
    product.close()
    status = exit_codes.ENGINE_FAILED if failed else exit_codes.OK
    leave(status)
    return status


def _print_change(product: Product, change: StateChanged, *, as_json: bool) -> None:
    status, engine = change.status, product.snapshot()
    failure = status.failure
    if as_json:
        line = StateLine(
            time=engine.time,
            state=status.state,
            phase=status.phase,
            generation=status.generation,
            preset=status.preset,
            endpoint=engine.engine.endpoint,
            cause=failure.cause if failure else None,
            hint=failure.hint if failure else None,
        )
        text = msgspec.json.encode(line).decode()
        print(text, file=product.output.terminal_stdout, flush=True)
        return
    text = str(status.state)
    if status.phase is not None:
        text += f" ({status.phase})"
    if status.state is EngineState.READY:
        text += f" on {engine.engine.endpoint}"
    if failure is not None:
        text += f": {failure.cause} {failure.hint}"
    print(text, file=product.output.terminal_stderr, flush=True)
