"""`history`: what past requests reused, computed and waited for, as a picture in the terminal."""

from __future__ import annotations

import argparse
import shutil
import sys
import time

import msgspec

from agentserve.cli import exit_codes
from agentserve.config.paths import AppPaths, app_paths
from agentserve.config.settings import load_settings
from agentserve.domain.errors import ConfigError
from agentserve.domain.history import RequestHistoryReport
from agentserve.telemetry.history_query import read_request_history
from agentserve.ui.glyphs import to_ascii
from agentserve.ui.lines import plain
from agentserve.ui.panels.request_history import draw, nothing

_LEAST_WIDTH = 80
_UNLIMITED_ROWS = 9_999
_SHOWN_ROWS = 8


def history(arguments: argparse.Namespace) -> int:
    """Print what is stored about the requests of the last days.

    Returns:
        0, also when there is nothing yet.

    Raises:
        HistoryUnreadableError: There is a file, and it cannot be read.
    """
    paths = app_paths()
    report = read_request_history(paths.request_history, arguments.days, time.time())
    most = arguments.sessions
    report = msgspec.structs.replace(
        report,
        is_recorded=_is_recorded(paths),
        sessions=report.sessions if most is None else report.sessions[:most],
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
        return exit_codes.OK
    columns = shutil.get_terminal_size((_LEAST_WIDTH, 24)).columns
    text = "\n".join(drawn(report, columns, max(_SHOWN_ROWS, most or 0)))
    print(text if _is_printable_in(text, sys.stdout.encoding) else _as_ascii(text))
    return exit_codes.OK


def drawn(report: RequestHistoryReport, columns: int, most_rows: int = _SHOWN_ROWS) -> list[str]:
    """Draw a report as plain text.

    Args:
        report: The totals.
        columns: Width of the terminal in cells; below 80 it counts as 80.
        most_rows: Rows of a table.

    Returns:
        Lines of at most that width.
    """
    if not report.total.requests:
        more = " Ask for more --days." if report.latest_at_unix_s is not None else ""
        return [nothing(report) + more]
    days = (report.last_day - report.first_day).days + 1
    span = f"{days} days to {report.last_day}" if days > 1 else str(report.last_day)
    lines = draw(report, max(columns, _LEAST_WIDTH), _UNLIMITED_ROWS, most_rows)
    return [f"Requests of {span}", *(plain(line).rstrip() for line in lines)]


def _is_recorded(paths: AppPaths) -> bool:
    try:
        return load_settings(paths)[0].history.enabled
    except ConfigError:
        # What is stored can be shown all the same; the app itself says what is wrong.
        return True


def _is_printable_in(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _as_ascii(text: str) -> str:
    return to_ascii(text).encode("ascii", "replace").decode("ascii")
