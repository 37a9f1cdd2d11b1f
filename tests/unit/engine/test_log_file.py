from __future__ import annotations

import stat
from pathlib import Path

from agentserve.engine.log_file import LogFile


def test_the_file_is_private_even_when_it_was_not(tmp_path: Path) -> None:
    path = tmp_path / "log" / "engine.log"
    path.parent.mkdir()
    path.write_text("old\n")
    path.chmod(0o644)
    file = LogFile(path)
    file.write(b"new\n")
    file.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "old\nnew\n"


def test_the_files_together_are_bounded_and_keep_the_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    file = LogFile(path, max_bytes=1_000, keep=2)
    for number in range(1_000):
        file.write(f"line {number}\n".encode())
    file.close()
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["engine.log", "engine.log.1", "engine.log.2"]
    assert all(each.stat().st_size <= 1_000 for each in files)
    text = "".join(each.read_text() for each in reversed(files))
    lines = text.splitlines()
    assert lines[-1] == "line 999"
    assert lines == [f"line {number}" for number in range(1_000 - len(lines), 1_000)]


def test_a_folder_that_cannot_be_made_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    file = LogFile(tmp_path / "file" / "engine.log")
    file.write(b"lost\n")
    assert file.failed_writes == 1


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    path = tmp_path / "engine.log"
    path.symlink_to(target)
    file = LogFile(path)
    file.write(b"x\n")
    assert file.failed_writes == 1
    assert target.read_text() == ""
