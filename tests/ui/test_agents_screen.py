from __future__ import annotations

import json
import shlex
import tomllib

import msgspec
import pytest

from agentserve.domain.snapshot import EngineView, SettingsView, Snapshot
from agentserve.ui.agent_settings import AGENTS, Agent, ServerFacts, facts_of, last_seen_unix_s
from agentserve.ui.app import AgentServeApp
from agentserve.ui.lines import plain
from agentserve.ui.widgets.panel import Panel

from . import scripted

FACTS = ServerFacts("http://127.0.0.1:8000", "org/Model-27B", 98_304, key_needed=False)
BY_ID = {agent.id: agent for agent in AGENTS}


def assignments(text: str) -> dict[str, str]:
    words = [shlex.split(line) for line in text.splitlines()]
    assert all(len(line) == 2 and line[0] == "export" for line in words)
    return dict(line[1].split("=", 1) for line in words)


def test_all_six_agents_are_there() -> None:
    names = [agent.name for agent in AGENTS]
    assert names == ["Claude Code", "OpenCode", "Qwen Code", "Codex", "Cline", "Continue"]


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.id)
def test_every_text_names_this_server_its_model_and_its_limit(agent: Agent) -> None:
    text = agent.settings(FACTS)
    assert "http://127.0.0.1:8000" in text
    assert "org/Model-27B" in text
    assert "98304" in text
    assert ("/v1" in text) is (agent.id != "claude-code")


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.id)
def test_a_key_is_named_by_its_variable_and_never_written(agent: Agent) -> None:
    assert "AGENTSERVE_API_KEY" in agent.settings(FACTS._replace(key_needed=True))
    assert "no-key-needed" not in agent.settings(FACTS._replace(key_needed=True))


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.id)
def test_what_is_not_known_is_left_out_or_seen_to_be_missing(agent: Agent) -> None:
    facts = facts_of(Snapshot(engine=EngineView(endpoint="http://h:1")), key_needed=False)
    text = agent.settings(facts)
    assert "<model>" in text
    assert "None" not in text
    assert "null" not in text


def test_claude_code_waits_long_and_sends_no_changing_line() -> None:
    values = assignments(BY_ID["claude-code"].settings(FACTS))
    assert values["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000"
    assert values["ANTHROPIC_AUTH_TOKEN"] == "no-key-needed"
    assert values["ANTHROPIC_MODEL"] == values["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "org/Model-27B"
    assert int(values["API_TIMEOUT_MS"]) >= 600_000
    assert values["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert values["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "98304"


def test_a_strange_model_name_cannot_become_a_command() -> None:
    text = BY_ID["claude-code"].settings(FACTS._replace(model="a b; rm -rf $(x)"))
    assert assignments(text)["ANTHROPIC_MODEL"] == "a b; rm -rf $(x)"


def test_the_json_of_opencode_and_qwen_code_is_json() -> None:
    opencode = json.loads(BY_ID["opencode"].settings(FACTS))
    provider = opencode["provider"]["agentserve"]
    assert opencode["model"] == "agentserve/org/Model-27B"
    assert provider["options"]["baseURL"] == "http://127.0.0.1:8000/v1"
    limit = provider["models"]["org/Model-27B"]["limit"]
    assert limit == {"context": 98_304, "output": 12_288}
    [entry] = json.loads(BY_ID["qwen-code"].settings(FACTS))["modelProviders"]["openai"]
    assert entry["baseUrl"] == "http://127.0.0.1:8000/v1"
    assert entry["generationConfig"]["contextWindowSize"] == 98_304


def test_the_toml_of_codex_is_toml() -> None:
    document = tomllib.loads(BY_ID["codex"].settings(FACTS._replace(key_needed=True)))
    provider = document["model_providers"][document["model_provider"]]
    assert provider["base_url"] == "http://127.0.0.1:8000/v1"
    assert provider["wire_api"] == "responses"
    assert provider["env_key"] == "AGENTSERVE_API_KEY"
    assert document["model_auto_compact_token_limit"] < document["model_context_window"] == 98_304


@pytest.mark.parametrize(
    ("user_agent", "agent_id"),
    [
        ("claude-cli/2.1.303 (external, cli)", "claude-code"),
        ("opencode/1.2 ai-sdk/openai-compatible", "opencode"),
        ("QwenCode/0.14.2 (linux; x64)", "qwen-code"),
        ("codex_cli_rs/0.162.1 (Debian)", "codex"),
        ("Cline/3.40", "cline"),
    ],
)
def test_a_request_is_recognised_by_its_user_agent(user_agent: str, agent_id: str) -> None:
    record = scripted.request(0, agent=user_agent)
    snapshot = Snapshot(time=scripted.START_UNIX_S, recent_requests=(record,))
    seen = {agent.id for agent in AGENTS if last_seen_unix_s(agent, snapshot) is not None}
    assert seen == {agent_id}
    assert last_seen_unix_s(BY_ID[agent_id], snapshot) == record.finished_at_unix_s


def test_an_unknown_client_is_nobody() -> None:
    snapshot = Snapshot(recent_requests=(scripted.request(0, agent="curl/8"), scripted.request(3)))
    assert {last_seen_unix_s(agent, snapshot) for agent in AGENTS} == {None}


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=str)
async def test_the_settings_are_shown_and_copied_at_one_key(size: tuple[int, int]) -> None:
    app = AgentServeApp(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=size) as pilot:
        await pilot.press("a")
        await pilot.pause()
        rows = [plain(line) for line in app.screen.query_one("#agents", Panel).lines]
        assert rows[0].startswith("▸ Claude Code   ✓ request 8 s ago")
        assert rows[2].strip() == "Qwen Code     no request seen"
        await pilot.press("y")
        facts = facts_of(app.frame.snapshot, key_needed=False)
        assert app.clipboard == BY_ID["claude-code"].settings(facts) + "\n"
        await pilot.press("j", "down", "down", "y")
        await pilot.pause()
        assert tomllib.loads(app.clipboard)["model"] == "example/Hybrid-27B-NVFP4"
        text = "\n".join(
            plain(line) for line in app.screen.query_one("#agent-settings", Panel).lines
        )
        assert 'wire_api = "responses"' in text
        await pilot.press("k", "k", "k", "k")
        await pilot.pause()
        assert app.screen.query_one("#agent-pane").border_title == "Settings for Continue"


async def test_the_page_says_when_a_key_is_needed_and_writes_only_what_changes() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = AgentServeApp(control, api_key_needed=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("a")
        await pilot.pause()
        settings = app.screen.query_one("#agent-settings", Panel)
        assert "A key is needed" in "\n".join(plain(line) for line in settings.lines)
        written = settings.rows_written
        control.current = msgspec.structs.replace(control.current, time=scripted.START_UNIX_S + 60)
        app.tick()
        await pilot.pause()
        assert settings.rows_written == written
        assert "1 min ago" in plain(app.screen.query_one("#agents", Panel).lines[0]) or (
            "68 s ago" in plain(app.screen.query_one("#agents", Panel).lines[0])
        )


def test_a_server_without_a_limit_gives_no_limit() -> None:
    engine = EngineView(endpoint="http://h:1", model="m", settings=SettingsView())
    facts = facts_of(Snapshot(engine=engine), key_needed=False)
    assert facts.output_tokens is None
    assert "limit" not in BY_ID["opencode"].settings(facts)
