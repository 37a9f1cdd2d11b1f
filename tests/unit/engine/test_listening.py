from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator

import pytest

from agentserve.domain.errors import PortTakenError
from agentserve.engine.listening import base_url, bind_listener
from agentserve.engine.serve_loop import new_loop


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with contextlib.closing(bind_listener("127.0.0.1", 0)) as bound:
        yield bound


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_port_0_takes_a_free_port(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert port > 0
    assert base_url(listener) == f"http://127.0.0.1:{port}"
    assert not listener.get_inheritable()


def test_a_taken_port_names_its_owner_within_a_second(listener: socket.socket) -> None:
    port = listener.getsockname()[1]

    def refused_after_s() -> float:
        began_s = time.monotonic()
        with pytest.raises(PortTakenError) as refused:
            bind_listener("127.0.0.1", port)
        elapsed_s = time.monotonic() - began_s
        assert f"Port {port} on 127.0.0.1 is taken" in refused.value.message
        assert f"(process {os.getpid()})" in refused.value.message
        assert f"--port {port + 1}" in refused.value.hint
        return elapsed_s

    # A machine that is busy with something else may spoil a try.
    assert any(refused_after_s() < 1.0 for _ in range(3))


def test_a_port_is_free_again_at_once_although_a_connection_lingers() -> None:
    first = bind_listener("127.0.0.1", 0)
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        first.setblocking(True)
        accepted, _ = first.accept()
        # The side that closes first keeps the port in TIME_WAIT.
        accepted.close()
        first.close()
    bind_listener("127.0.0.1", port).close()


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(PortTakenError, match=r"does not have the address 192\.0\.2\.1") as refused:
        bind_listener("192.0.2.1", 8000)
    assert "host" in refused.value.hint


@pytest.mark.parametrize("host", ["no such host", "x" * 70, "256.0.0.1"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(PortTakenError, match="Cannot listen") as refused:
        bind_listener(host, 8000)
    assert "host" in refused.value.hint


@pytest.mark.parametrize("port", [-1, 65536, 70000])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(PortTakenError):
        bind_listener("127.0.0.1", port)


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
def test_ipv6_has_brackets_in_its_url() -> None:
    with contextlib.closing(bind_listener("::1", 0)) as listener:
        assert base_url(listener) == f"http://[::1]:{listener.getsockname()[1]}"
        with socket.create_connection(("::1", listener.getsockname()[1])):
            pass


def test_all_addresses_are_reached_by_the_local_one() -> None:
    with contextlib.closing(bind_listener("0.0.0.0", 0)) as listener:
        assert base_url(listener).startswith("http://127.0.0.1:")


@pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
def test_small_answers_are_not_held_back_on_accepted_connections(
    listener: socket.socket, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "uvloop":
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_loop()
    assert (type(loop).__module__ == "uvloop") == (kind == "uvloop")

    async def accepted_option() -> int:
        option: asyncio.Future[int] = loop.create_future()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            option.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(accept, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            value = await asyncio.wait_for(option, 5.0)
            writer.close()
            await writer.wait_closed()
        return value

    try:
        assert loop.run_until_complete(accepted_option()) != 0
    finally:
        loop.close()
