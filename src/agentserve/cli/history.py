"""`history`: what past requests reused, computed and waited for, as a picture in the terminal."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterable, Iterator

import msgspec

from agentserve.cli import exit_codes
from agentserve.config.paths import app_paths
from agentserve.domain.history import DayTotals, HistoryTotals, RequestHistoryReport
from agentserve.telemetry.history_query import read_request_history
from agentserve.ui.formatting import DASH, count, duration, integer, percent
from agentserve.ui.lines import fit

_LEAST_WIDTH = 80
_MOST_WIDTH = 140
_DAY_WIDTH = 10
_SHOWN_ROWS = 8
_DIGITS = 6
"""Of a session's digest: enough to tell a few sessions apart."""
_CACHED = "█"
_COMPUTED = "░"
_ASCII = str.maketrans({_CACHED: "#", _COMPUTED: ".", DASH: "-", "·": "|", "…": "~"})

_DAY_COLUMNS = f"{'cached':>7}{'computed':>10}{'hit':>9}{'TTFT p50':>10}{'n':>6}"
_TABLE_COLUMNS = (
    f"{'n':>7}{'aborted':>9}{'cached':>8}{'computed':>10}{'hit':>9}{'TTFT p50':>10}{'p95':>7} "
)


def history(arguments: argparse.Namespace) -> int:
    """Print what is stored about the requests of the last days.

    Returns:
        0, also when there is nothing yet.

    Raises:
        HistoryUnreadableError: There is a file, and it cannot be read.
    """
    report = read_request_history(app_paths().request_history, arguments.days, time.time())
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
        return exit_codes.OK
    columns = shutil.get_terminal_size((_LEAST_WIDTH, 24)).columns
    text = "\n".join(drawn(report, columns))
    print(text if _is_printable_in(text, sys.stdout.encoding) else _to_ascii(text))
    return exit_codes.OK


def drawn(report: RequestHistoryReport, columns: int) -> list[str]:
    """Draw a report as plain text.

    Args:
        report: The totals.
        columns: Width of the terminal in cells; below 80 it counts as 80.

    Returns:
        Lines of at most that width.
    """
    if not report.total.requests:
        return [_nothing(report)]
    width = min(max(columns, _LEAST_WIDTH), _MOST_WIDTH)
    days = (report.last_day - report.first_day).days + 1
    lines = [
        f"Requests of {days} days to {report.last_day} · {report.total.requests:,} requests"
        if days > 1
        else f"Requests of {report.last_day} · {report.total.requests:,} requests",
        "",
        *_picture(report, width),
        "",
        *_table("preset", [(row.preset, row.totals) for row in report.presets], width),
        "",
        *_table("agent", [(_agent(row.agent), row.totals) for row in report.agents], width),
    ]
    if report.sessions:
        # The newest ones are of use; a month of agents leaves hundreds.
        rows = [
            (f"{row.session[:_DIGITS]} {_agent(row.agent)}", row.totals) for row in report.sessions
        ]
        lines += ["", *_table("session, newest", rows, width)]
    lines += ["", *_footnotes(report.total)]
    return [line.rstrip() for line in lines]


def _nothing(report: RequestHistoryReport) -> str:
    if report.latest_at_unix_s is None:
        return "no history yet"
    latest = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.latest_at_unix_s))
    return (
        f"no requests from {report.first_day} to {report.last_day}; "
        f"the newest one stored ended {latest}: ask for more --days"
    )


def _picture(report: RequestHistoryReport, width: int) -> Iterator[str]:
    bar_width = width - _DAY_WIDTH - 2 - len(_DAY_COLUMNS)
    most_tokens = max(_known_tokens(day.totals) for day in report.days)
    legend = f"{_CACHED} cached {_COMPUTED} computed tokens"
    yield f"{'day':<{_DAY_WIDTH + 1}}{legend:<{bar_width}} {_DAY_COLUMNS}"
    idle: list[DayTotals] = []
    for day in report.days:
        if not day.totals.requests:
            idle.append(day)
            continue
        yield from _idle_line(idle)
        idle = []
        totals = day.totals
        bar = _bar(totals, most_tokens, bar_width)
        yield (
            f"{day.day.isoformat()} {bar:<{bar_width}} {count(totals.cached_tokens):>7}"
            f"{count(totals.computed_tokens):>10}{percent(totals.hit_rate):>9}"
            f"{duration(totals.ttft_s.p50):>10}{integer(totals.requests, 5):>6}"
        )
    yield from _idle_line(idle)


def _idle_line(idle: list[DayTotals]) -> Iterator[str]:
    if idle:
        days = f"{len(idle)} days" if len(idle) > 1 else "1 day"
        yield f"{'':<{_DAY_WIDTH}} {days} without requests"


def _bar(totals: HistoryTotals, most_tokens: int, width: int) -> str:
    """Draw a day to the scale of the busiest one; what is not 0 has a cell at least."""
    if most_tokens <= 0:
        return ""
    cached, computed = totals.cached_tokens or 0, totals.computed_tokens or 0
    whole = round(width * (cached + computed) / most_tokens)
    least = (cached > 0) + (computed > 0)
    whole = max(whole, least)
    if not least:
        return ""
    filled = round(whole * cached / (cached + computed))
    filled = min(max(filled, int(cached > 0)), whole - int(computed > 0))
    return _CACHED * filled + _COMPUTED * (whole - filled)


def _table(title: str, rows: list[tuple[str, HistoryTotals]], width: int) -> Iterator[str]:
    name_width = width - len(_TABLE_COLUMNS)
    yield f"{fit('by ' + title, name_width)}{_TABLE_COLUMNS}"
    for name, totals in rows[:_SHOWN_ROWS]:
        yield (
            f"{fit(name, name_width)}{integer(totals.requests, 6):>7}"
            f"{integer(totals.aborted, 6):>9}{count(totals.cached_tokens):>8}"
            f"{count(totals.computed_tokens):>10}{percent(totals.hit_rate):>9}"
            f"{duration(totals.ttft_s.p50):>10}{duration(totals.ttft_s.p95).strip():>8}"
        )
    if len(rows) > _SHOWN_ROWS:
        yield f"{len(rows) - _SHOWN_ROWS} more with --json"


def _footnotes(total: HistoryTotals) -> Iterable[str]:
    yield (
        f"hit = cached / prompt tokens, n {total.hit_rate_requests:,}; "
        f"TTFT n {total.ttft_s.n:,}; generated {count(total.generated_tokens).strip()} tokens"
    )
    if total.aborted or total.failed:
        yield f"{total.aborted:,} requests were aborted, {total.failed:,} failed"


def _known_tokens(totals: HistoryTotals) -> int:
    return (totals.cached_tokens or 0) + (totals.computed_tokens or 0)


def _agent(name: str | None) -> str:
    return name or "(unnamed)"


def _is_printable_in(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _to_ascii(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
