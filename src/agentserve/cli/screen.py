"""The screen: opens the Textual app over the product, and puts everything back afterwards."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from agentserve.cli import exit_codes
from agentserve.cli.leaving import leave
from agentserve.cli.product import Product, ProductOptions
from agentserve.config.paths import app_paths
from agentserve.config.themes import load_themes
from agentserve.domain.errors import AgentServeError
from agentserve.domain.lifecycle import StateChanged
from agentserve.ui.app import AgentServeApp
from agentserve.ui.messages import EngineStateChanged
from agentserve.ui.notifications import NotifyOptions

_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def screen(arguments: argparse.Namespace) -> int:
    """Show the screen until the user quits, a signal comes or the terminal goes away.

    Returns:
        0 after a normal end, 1 after an error of the screen, 128 + n after signal n.

    Raises:
        AgentServeError: There is no terminal, or the product cannot be opened.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise AgentServeError(
            "The screen needs a terminal on standard input, output and error.",
            "Without one, run agentserve-tui serve.",
        )
    product = Product(
        ProductOptions(
            preset=arguments.preset,
            first_preset=arguments.first_preset,
            host=arguments.host,
            port=arguments.port,
            simulate=arguments.simulate,
        )
    )
    themes, theme_problems = load_themes(app_paths())
    product.add_problems(theme_problems)
    product.open()
    settings = product.settings
    app = AgentServeApp(
        product,
        theme_specs=themes,
        initial_theme=arguments.theme or product.theme,
        ascii_only=settings.ascii,
        keys=settings.keys,
        api_key_needed=product.address.api_key is not None,
        notify=NotifyOptions(
            bell=settings.notify.bell,
            title=settings.notify.title,
            desktop=settings.notify.desktop,
        ),
    )
    received: list[int] = []

    def end(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)
        app.call_later(app.exit)

    for signum in _EXIT_SIGNALS:
        signal.signal(signum, end)

    def show(change: StateChanged) -> None:
        app.post_message(EngineStateChanged(change.status))

    product.on_state_change(show)
    if not arguments.no_start and product.engine_missing is None:
        product.start_at_open()
    status = exit_codes.OK
    try:
        app.run()
        # After a signal the reason is the signal, whatever a screen that is torn down says.
        status = 128 + received[0] if received else app.return_code or exit_codes.OK
    finally:
        # Until the engine is gone a second signal must not end us: it would be left behind.
        for signum in _EXIT_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        in_time = product.close()
    if not in_time:
        print("Some engine processes did not end in time; they are being killed.", file=sys.stderr)
    leave(status)
    return status
