"""The real sampler and the real nvidia-ml-py against a stand-in for the driver library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import agentserve
from agentserve.domain.gpu import GpuReport
from agentserve.telemetry import nvml
from tests.nvml_stub import runner
from tests.nvml_stub.runner import Observation

MIB = 1024 * 1024
TOTAL_BYTES = 16311 * MIB
RESERVED_BYTES = 430 * MIB
USED_BYTES = 9000 * MIB
PACKAGE_PARENT = Path(agentserve.__file__).parents[1]


def observe(library_dir: Path, *arguments: str, **behaviour: int) -> Observation:
    """Run the sampler in a new process.

    Args:
        library_dir: Where the driver library is looked for first.
        arguments: Options of the runner.
        behaviour: Settings of the stub, for example `gpus=1` for NVML_STUB_GPUS.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PACKAGE_PARENT),
        "LD_LIBRARY_PATH": str(library_dir),
        **{f"NVML_STUB_{name.upper()}": str(value) for name, value in behaviour.items()},
    }
    finished = subprocess.run(
        [sys.executable, runner.__file__, *arguments],
        env=environment,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr.decode()
    return msgspec.json.decode(finished.stdout, type=Observation)


def reason_of(report: GpuReport) -> str:
    assert report.gpus == ()
    assert report.unavailable_reason is not None
    return report.unavailable_reason


def test_two_cards_are_read_with_all_fields(nvml_stub_dir: Path) -> None:
    report = observe(nvml_stub_dir, "--reports=2").reports[-1]
    assert report.unavailable_reason is None
    assert report.driver_version == "590.44.01"
    first, second = report.gpus
    assert (first.index, first.name) == (0, "NVIDIA GeForce RTX 5060 Ti")
    assert first.uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert first.memory_total_bytes == TOTAL_BYTES
    assert first.memory_reserved_bytes == RESERVED_BYTES
    assert first.memory_used_bytes == USED_BYTES
    assert (first.utilization_percent, first.temperature_c) == (71, 61)
    assert (first.power_w, first.power_limit_w) == (151.5, 180.0)
    assert first.pcie_rx_bytes_per_s == 3_400_000
    assert first.pcie_tx_bytes_per_s == 1_200_000
    assert (first.pcie_gen, first.pcie_width, first.sm_clock_mhz) == (5, 8, 2602)
    assert (first.lost, first.notes) == (False, ())
    assert second.index == 1
    assert second.memory_used_bytes == USED_BYTES + 500 * MIB
    assert second.utilization_percent == 72


def test_power_that_one_card_does_not_support_is_unknown_there_and_nothing_else_is(
    nvml_stub_dir: Path,
) -> None:
    report = observe(nvml_stub_dir, "--reports=1", power_unsupported=1).reports[0]
    first, second = report.gpus
    assert (first.power_w, first.notes) == (151.5, ())
    assert (second.power_w, second.power_limit_w) == (None, None)
    assert second.notes == ("power: Not Supported", "power limit: Not Supported")
    assert second.memory_used_bytes == USED_BYTES + 500 * MIB
    assert second.temperature_c == 62


@pytest.mark.parametrize("code", [3, 13, 999])
def test_memory_falls_back_to_the_first_version_when_the_second_is_refused(
    nvml_stub_dir: Path, code: int
) -> None:
    gpu = observe(nvml_stub_dir, "--reports=1", memory_v2_error=code).reports[0].gpus[0]
    assert gpu.memory_used_bytes == USED_BYTES + RESERVED_BYTES
    assert gpu.memory_reserved_bytes is None
    assert gpu.memory_total_bytes == TOTAL_BYTES
    assert "memory: used includes what the driver reserves" in gpu.notes


def test_memory_falls_back_when_the_library_lacks_the_second_version(
    old_nvml_stub_dir: Path,
) -> None:
    gpu = observe(old_nvml_stub_dir, "--reports=1").reports[0].gpus[0]
    assert gpu.memory_used_bytes == USED_BYTES + RESERVED_BYTES
    assert gpu.memory_reserved_bytes is None
    assert "memory v2: Function Not Found" in gpu.notes


def test_slow_pcie_readings_delay_neither_readers_nor_the_other_fields(
    nvml_stub_dir: Path,
) -> None:
    seen = observe(nvml_stub_dir, "--reports=2", pcie_delay_ms=250)
    assert seen.longest_read_s < 0.25
    before, after = seen.reports
    # The fast fields are out before the slow ones are asked for.
    assert before.gpus[0].temperature_c == 61
    assert before.gpus[0].pcie_rx_bytes_per_s is None
    assert after.gpus[0].pcie_rx_bytes_per_s == 3_400_000


def test_stopping_does_not_wait_for_a_slow_driver(nvml_stub_dir: Path) -> None:
    seen = observe(nvml_stub_dir, "--reports=1", "--stop-timeout-s=0.1", pcie_delay_ms=2000)
    assert seen.stopped is False
    assert seen.stop_s < 1.0


def test_a_driver_that_hangs_makes_the_report_old_and_not_the_app(nvml_stub_dir: Path) -> None:
    seen = observe(
        nvml_stub_dir,
        "--reports=3",
        "--deadline-s=2",
        "--stale-s=0.5",
        "--stop-timeout-s=0.1",
        hang_after=2,
    )
    assert len(seen.reports) == 2
    assert seen.age_s > 0.5
    assert seen.longest_read_s < 0.5
    assert seen.stopped is False
    assert seen.current.unavailable_reason is not None
    assert "has not answered" in seen.current.unavailable_reason
    assert seen.current.gpus[0].name == "NVIDIA GeForce RTX 5060 Ti"
    assert seen.current.gpus[0].temperature_c is None


def test_a_card_that_is_lost_keeps_its_name_and_loses_its_values(nvml_stub_dir: Path) -> None:
    seen = observe(nvml_stub_dir, "--reports=5", lost_gpu=1, lost_after=3)
    assert [report.gpus[1].lost for report in seen.reports] == [False, False, False, True, True]
    healthy, lost = seen.reports[-1].gpus
    assert healthy.temperature_c == 61
    assert lost.name == "NVIDIA GeForce RTX 5060 Ti"
    assert lost.uuid == "GPU-00000000-0000-0000-0000-000000000001"
    assert lost.memory_used_bytes is None
    assert lost.pcie_rx_bytes_per_s is None
    assert lost.notes == ("The driver says that this GPU has fallen off the bus.",)


def test_a_lost_card_is_seen_again_after_a_clean_new_beginning(nvml_stub_dir: Path) -> None:
    seen = observe(
        nvml_stub_dir,
        "--reports=2000",
        "--deadline-s=2",
        "--retry-s=0.05",
        lost_gpu=1,
        lost_after=1,
        back_after_init=3,
    )
    states = [report.gpus[1].lost for report in seen.reports]
    assert states[0] is False
    assert True in states
    assert states[-1] is False
    assert seen.reports[-1].gpus[1].memory_used_bytes == USED_BYTES + 500 * MIB
    assert all(report.gpus[0].temperature_c == 61 for report in seen.reports)


def test_a_driver_mismatch_asks_for_a_reboot(nvml_stub_dir: Path) -> None:
    seen = observe(nvml_stub_dir, "--reports=1", init_error=18)
    assert "reboot" in reason_of(seen.reports[0])
    assert "mismatch" in reason_of(seen.reports[0])


def test_missing_permission_names_the_devices(nvml_stub_dir: Path) -> None:
    seen = observe(nvml_stub_dir, "--reports=1", init_error=4)
    assert "/dev/nvidia" in reason_of(seen.reports[0])


def test_a_driver_that_is_not_loaded_names_the_command(nvml_stub_dir: Path) -> None:
    seen = observe(nvml_stub_dir, "--reports=1", init_error=9)
    assert "modprobe nvidia" in reason_of(seen.reports[0])


def test_an_error_without_a_name_points_to_nvidia_smi(nvml_stub_dir: Path) -> None:
    seen = observe(nvml_stub_dir, "--reports=1", init_error=77)
    assert "an error without a name" in reason_of(seen.reports[0])
    assert "nvidia-smi" in reason_of(seen.reports[0])


def test_a_driver_without_cards_says_so(nvml_stub_dir: Path) -> None:
    assert reason_of(observe(nvml_stub_dir, "--reports=1", gpus=0).reports[0]) == nvml.NO_GPU


@pytest.mark.skipif(
    Path("/proc/driver/nvidia").exists(), reason="this machine has an NVIDIA driver"
)
def test_without_a_driver_library_the_binding_is_not_even_imported(tmp_path: Path) -> None:
    seen = observe(tmp_path, "--reports=1")
    assert reason_of(seen.reports[0]) == nvml.NO_LIBRARY
    assert seen.pynvml_imported is False
    assert seen.stopped is True
