from __future__ import annotations

import pytest

from agentserve.config.listen_address import ListenAddress, resolve_listen_address
from agentserve.config.settings import ServerSettings
from agentserve.domain.errors import AddressRefusedError, ConfigError


def resolve(
    host: str | None = None,
    *,
    port: int | None = None,
    environ: dict[str, str] | None = None,
    api_key: str | None = None,
    api_keys: dict[str, str] | None = None,
    isolate: bool = False,
) -> ListenAddress:
    settings = ServerSettings(api_key=api_key, api_keys=api_keys or {}, isolate_api_keys=isolate)
    return resolve_listen_address(settings, environ=environ or {}, host=host, port=port)


@pytest.mark.parametrize("host", [None, "127.0.0.1", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_this_machine_needs_no_key(host: str | None) -> None:
    assert resolve(host).api_key is None


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "", "192.0.2.1", "example.org", "127.0.0.1.example.org", "0", "\x1b[m"],
)
def test_every_other_address_is_refused_without_a_key(host: str) -> None:
    with pytest.raises(AddressRefusedError) as refused:
        resolve(host)
    assert "AGENTSERVE_API_KEY" in refused.value.hint
    assert refused.value.message.isprintable()


def test_a_key_in_the_file_or_the_environment_opens_an_address() -> None:
    assert resolve("0.0.0.0", api_key="file").api_key == "file"
    key = {"AGENTSERVE_API_KEY": "environment"}
    assert resolve("0.0.0.0", api_key="file", environ=key).api_key == "environment"


def test_named_keys_open_an_address_and_come_after_the_one_without_a_name() -> None:
    named = {"bo": "b", "ada": "a"}
    address = resolve("0.0.0.0", api_keys=named)
    assert [(each.name, each.key) for each in address.api_keys] == [("bo", "b"), ("ada", "a")]
    assert address.api_key == "b"
    key = {"AGENTSERVE_API_KEY": "environment"}
    for file_key in (None, "file"):
        address = resolve("0.0.0.0", api_key=file_key, api_keys=named, environ=key)
        assert [each.key for each in address.api_keys] == ["environment", "b", "a"]
        assert [each.name for each in address.api_keys] == [None, "bo", "ada"]


def test_a_variable_that_repeats_a_named_key_is_one_key_and_comes_first() -> None:
    key = {"AGENTSERVE_API_KEY": "a"}
    address = resolve(api_keys={"bo": "b", "ada": "a"}, environ=key)
    assert [(each.name, each.key) for each in address.api_keys] == [("ada", "a"), ("bo", "b")]


def test_only_two_keys_or_more_are_kept_apart() -> None:
    assert resolve(api_key="k", api_keys={"ada": "a"}, isolate=True).isolate
    assert not resolve(api_key="k", api_keys={"ada": "a"}).isolate
    assert not resolve(api_keys={"ada": "a"}, isolate=True).isolate


def test_an_empty_variable_is_no_key() -> None:
    with pytest.raises(AddressRefusedError):
        resolve("0.0.0.0", environ={"AGENTSERVE_API_KEY": "  "})


def test_a_key_that_no_client_can_send_is_refused() -> None:
    with pytest.raises(ConfigError, match="HTTP header"):
        resolve(api_key="schlüssel\n")
    with pytest.raises(ConfigError, match="HTTP header"):
        resolve(api_keys={"ada": "a", "bo": " b"})


def test_the_command_line_goes_before_the_file() -> None:
    settings = ServerSettings(host="127.0.0.1", port=9000)
    address = resolve_listen_address(settings, environ={}, host="::1", port=1234)
    assert (address.host, address.port) == ("::1", 1234)
    with pytest.raises(ConfigError, match="not a port"):
        resolve(port=70_000)


def test_the_url_is_one_that_a_client_here_can_use() -> None:
    assert resolve().url == "http://127.0.0.1:8000"
    assert resolve("::1").url == "http://[::1]:8000"
    assert resolve("0.0.0.0", api_key="k").url == "http://127.0.0.1:8000"
    address = resolve(api_key="secret", api_keys={"ada": "secret too"})
    assert "secret" not in repr(address)
    assert "secret" not in repr([each.__rich_repr__() for each in address.api_keys])
