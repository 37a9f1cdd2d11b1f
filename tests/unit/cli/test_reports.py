"""What engine reports become: sessions in the snapshot, and digests of them on the disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from agentserve.cli.reports import EngineReports, session_tracker
from agentserve.domain.gpu import GpuReport
from agentserve.domain.history import session_digest
from agentserve.domain.lifecycle import EngineState, EngineStatus
from agentserve.domain.request import InFlightRequest, RequestOrigin, RequestStart
from agentserve.domain.snapshot import Snapshot, encode_snapshot
from agentserve.telemetry.collector import SnapshotCollector
from agentserve.telemetry.engine_stats import EngineStats
from agentserve.telemetry.request_history import RequestHistory
from tests.unit.telemetry.finished_request import NOW_S, finished

CLIENTS_ID = "acme-takeover-plan"
DEADLINE_S = 20.0


def start(number: int) -> RequestStart:
    return RequestStart(
        number=number,
        generation=1,
        engine_request_id=f"e{number}",
        origin=RequestOrigin(
            number=number, route="/v1/chat/completions", session_header=CLIENTS_ID
        ),
        at_unix_s=1.0,
        choices=1,
        prompt_token_ids=[number] * 100,
        cache_salt=None,
        body=None,
    )


def one_run(path: Path) -> Snapshot:
    """Run the app once: one request of a session ends, another one does not."""
    status = EngineStatus(state=EngineState.READY, generation=1, preset="tiny")
    stats, sessions = EngineStats(), session_tracker()
    history = RequestHistory(path, flush_s=0.01, now=lambda: NOW_S)
    history.start()
    sessions.start()
    reports = EngineReports(stats, sessions, history, lambda: status)
    reports.request_started(start(1))
    reports.request_started(start(2))
    reports.request_finished(msgspec.structs.replace(finished(), number=1), ())
    assert sessions.flush(DEADLINE_S)
    running = InFlightRequest(
        number=2,
        request_id="e2",
        route=None,
        phase="decode",
        prompt_tokens=100,
        cached_tokens=None,
        computed_tokens=None,
        generated_tokens=1,
        elapsed_s=0.1,
    )
    collector = SnapshotCollector(
        endpoint="http://127.0.0.1:8000",
        status=lambda: status,
        stats=stats,
        gpu_report=GpuReport,
        processes=tuple,
        in_flight=lambda: (running,),
        log_dropped_lines=int,
        sessions=sessions.view,
    )
    snapshot = collector.snapshot()
    sessions.close(DEADLINE_S)
    assert history.close(DEADLINE_S)
    return snapshot


def test_a_session_has_one_id_in_the_snapshot_and_one_digest_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "data" / "requests.sqlite3"
    for _ in range(2):
        snapshot = one_run(path)
        (session,) = snapshot.sessions
        assert [each.session for each in snapshot.in_flight] == [session.id]
        assert [each.session for each in snapshot.recent_requests] == [session.id]
        assert CLIENTS_ID.encode() not in encode_snapshot(snapshot)
    reader = sqlite3.connect(path)
    rows = reader.execute("SELECT session FROM requests").fetchall()
    reader.close()
    assert rows == [(session_digest(CLIENTS_ID),)] * 2
    written = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert CLIENTS_ID.encode() not in written
