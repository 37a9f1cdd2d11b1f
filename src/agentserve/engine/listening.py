"""The listening socket of the API: bound before the first load, kept to the end.

Owns binding and the explanation when it fails. Which addresses are allowed is configuration's
business.
"""

from __future__ import annotations

import errno
import socket

import psutil

from agentserve.domain.errors import PortTakenError
from agentserve.domain.text import printable

_BACKLOG = 2048
_MAX_PORT = 65535


def bind_listener(host: str, port: int) -> socket.socket:
    """Bind and listen.

    The protocol is given explicitly: asyncio sets TCP_NODELAY on accepted connections only when the
    listener says IPPROTO_TCP, and without it the first token waits 40 ms for a delayed ACK.

    Args:
        host: Address or name.
        port: TCP port; 0 takes a free one.

    Returns:
        A listening, non-inheritable socket.

    Raises:
        PortTakenError: Somebody else listens there, or the address cannot be used.
    """
    if not 0 <= port <= _MAX_PORT:
        # The resolver would take it modulo 65536.
        raise PortTakenError(f"{port} is not a port.", "Choose a --port from 1 to 65535.")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise PortTakenError(
            f"Cannot listen on {host}:{port}: {reason}.", "Check the host setting."
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _refusal(host, port, error) from error
    listener.setblocking(False)
    return listener


def base_url(listener: socket.socket) -> str:
    """The URL that a client on this machine uses, without a trailing slash."""
    host, port = listener.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _refusal(host: str, port: int, error: OSError) -> PortTakenError:
    if error.errno == errno.EADDRINUSE:
        return PortTakenError(
            f"Port {port} on {host} is taken{_owner_text(port)}.",
            f"End that program, or choose another port with --port {_another(port)}.",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return PortTakenError(
            f"This machine does not have the address {host}.", "Check the host setting."
        )
    return PortTakenError(
        f"Cannot listen on {host}:{port}: {error.strerror}.", "Choose another --port."
    )


def _another(port: int) -> int:
    return port + 1 if port < _MAX_PORT else port - 1


def _owner_text(port: int) -> str:
    """Name the owner of a listening port, as far as this user may see it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return ""
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or not connection.laddr:
            continue
        if connection.laddr.port != port:
            continue
        if connection.pid is not None:
            try:
                name = printable(psutil.Process(connection.pid).name(), 40)
            except psutil.Error:
                return f" by process {connection.pid}"
            return f" by {name} (process {connection.pid})"
    return " by a process of another user"
