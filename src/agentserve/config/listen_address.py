"""Where the API listens, and who may reach it.

Owns the rule that an address which other machines can reach needs an API key. It opens no socket.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping

import msgspec

from agentserve.config.api_keys import (
    API_KEY_VARIABLE,
    ISOLATED_KEYS_MIN,
    can_be_sent,
    chosen_keys,
)
from agentserve.config.settings import ServerSettings
from agentserve.domain.api_key import ApiKey
from agentserve.domain.errors import AddressRefusedError, ConfigError
from agentserve.domain.text import printable

_LOCAL_NAME = "localhost"


class ListenAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A checked address."""

    host: str
    port: int
    api_keys: tuple[ApiKey, ...] = ()
    """One of them must come with every request; empty when none is needed."""
    isolate: bool = False
    """Whether each key has a prefix cache of its own."""

    @property
    def api_key(self) -> str | None:
        """The key for a client of our own; None when none is needed."""
        return self.api_keys[0].key if self.api_keys else None

    @property
    def url(self) -> str:
        """Base URL for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", self.url)]


def resolve_listen_address(
    settings: ServerSettings,
    *,
    environ: Mapping[str, str] = os.environ,
    host: str | None = None,
    port: int | None = None,
) -> ListenAddress:
    """Decide where to listen.

    Args:
        settings: The `[server]` table of `config.toml`.
        environ: The environment; `AGENTSERVE_API_KEY` goes before the file's key.
        host: From the command line; goes before the file's.
        port: From the command line; goes before the file's.

    Raises:
        AddressRefusedError: Other machines could reach the address, and there is no API key.
        ConfigError: The port or the API key cannot be used.
    """
    chosen_host = (
        (settings.host if host is None else host).strip().removeprefix("[").removesuffix("]")
    )
    chosen_port = settings.port if port is None else port
    keys = chosen_keys(settings.api_key, settings.api_keys, environ)
    if not 1 <= chosen_port <= 65535:
        raise ConfigError(f"{chosen_port} is not a port.", "Choose a port from 1 to 65535.")
    if not all(can_be_sent(each.key) for each in keys):
        raise ConfigError(
            "An API key has characters that cannot stand in an HTTP header.",
            "Use ASCII letters, digits and punctuation, without spaces around them.",
        )
    if not keys and not is_local(chosen_host):
        raise AddressRefusedError(
            printable(
                f"Other machines could reach {chosen_host or 'all addresses'!r},"
                " and there is no API key."
            ),
            f"Set {API_KEY_VARIABLE} or api_key under [server] in config.toml,"
            " or listen on 127.0.0.1.",
        )
    return ListenAddress(
        host=chosen_host,
        port=chosen_port,
        api_keys=keys,
        isolate=settings.isolate_api_keys and len(keys) >= ISOLATED_KEYS_MIN,
    )


def is_local(host: str) -> bool:
    """Tell whether only this machine can reach an address; of names only localhost counts."""
    if host.lower() == _LOCAL_NAME:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
