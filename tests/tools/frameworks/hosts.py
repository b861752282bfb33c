"""Hosts: programs that people use, from npm, each with a scripted model on loopback and a home folder of its own.

None of them has an account here, nor reaches any other machine. Addresses and folders in these texts are replaced by
those of a trial.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

SERVER: Final = "http://127.0.0.1:8000/mcp"
MODEL: Final = "http://127.0.0.1:9000"
HOME: Final = "/home/trial"
PROMPT: Final = "Put bread, milk and tea into the cart."
_CLAUDE: Final = {
    "ANTHROPIC_BASE_URL": MODEL,
    "ANTHROPIC_API_KEY": "scripted",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "ENABLE_TOOL_SEARCH": "false",  # tools are in the model's first request
}


@dataclass(frozen=True)
class Host:
    """A host in its default settings."""

    name: str
    package: str  # of npm
    program: str  # below `node_modules`
    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # below the home folder


_CLAUDE_SERVERS: Final = {"mcpServers": {"shop": {"type": "http", "url": SERVER}}}
_CODEX: Final = f"""
model = "scripted"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{MODEL}/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"

[mcp_servers.shop]
url = "{SERVER}"
default_tools_approval_mode = "approve"
"""
_GEMINI: Final = {
    "mcpServers": {"shop": {"httpUrl": SERVER, "trust": True}},
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"disableAutoUpdate": True},
}
_CLINE_MODEL: Final = {
    "version": 1,
    "lastUsedProvider": "openai-compatible",
    "modes": {},
    "providers": {
        "openai-compatible": {
            "settings": {
                "provider": "openai-compatible",
                "apiKey": "scripted",
                "model": "scripted",
                "baseUrl": f"{MODEL}/v1",
            },
            "updatedAt": "2026-11-28T00:00:00.000Z",
            "tokenSource": "manual",
        }
    },
}
_CLINE_SERVERS: Final = {"mcpServers": {"shop": {"transport": {"type": "streamableHttp", "url": SERVER}}}}
_CONTINUE: Final = f"""
name: shop
version: 1.0.0
schema: v1
models:
  - name: scripted
    provider: openai
    model: scripted
    apiBase: {MODEL}/v1
    apiKey: scripted
    roles: [chat]
    capabilities: [tool_use]
mcpServers:
  - name: shop
    type: streamable-http
    url: {SERVER}
"""
_OPENCODE: Final = {
    "autoupdate": False,
    "share": "disabled",
    "model": "scripted/scripted",
    "small_model": "scripted/scripted",
    "provider": {
        "scripted": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{MODEL}/v1", "apiKey": "scripted"},
            "models": {"scripted": {"tool_call": True}},
        }
    },
    "permission": {"*": "allow"},
    "mcp": {"shop": {"type": "remote", "url": SERVER}},
}

HOSTS: Final = (
    Host(
        "Claude Code",
        "@anthropic-ai/claude-code",
        "@anthropic-ai/claude-code-linux-x64/claude",
        (
            *("-p", PROMPT, "--mcp-config", f"{HOME}/shop.json", "--strict-mcp-config"),
            *("--allowedTools", "mcp__shop__add", "--model", "claude-sonnet-5"),
        ),
        _CLAUDE,
        {"shop.json": json.dumps(_CLAUDE_SERVERS)},
    ),
    Host(
        "Codex",
        "@openai/codex",
        ".bin/codex",
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", PROMPT),
        {"SCRIPTED_KEY": "scripted"},
        {".codex/config.toml": _CODEX},
    ),
    Host(
        "Gemini CLI",
        "@google/gemini-cli",
        "@google/gemini-cli/bundle/gemini.js",
        ("-m", "gemini-2.5-flash", "--yolo", "-p", PROMPT),
        {"GEMINI_API_KEY": "scripted", "GOOGLE_GEMINI_BASE_URL": MODEL, "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        {".gemini/settings.json": json.dumps(_GEMINI)},
    ),
    Host(
        "Cline",
        "cline",
        "@cline/cli-linux-x64/bin/cline",
        ("-c", HOME, PROMPT),
        {"CLINE_SESSION_BACKEND_MODE": "local"},  # or a daemon would outlive it
        {
            ".cline/data/settings/providers.json": json.dumps(_CLINE_MODEL),
            ".cline/data/settings/cline_mcp_settings.json": json.dumps(_CLINE_SERVERS),
        },
    ),
    Host(
        "Continue",
        "@continuedev/cli",
        "@continuedev/cli/dist/cn.js",
        ("--config", f"{HOME}/shop.yaml", "--auto", "-p", PROMPT),
        {"CONTINUE_TELEMETRY_ENABLED": "0"},
        {"shop.yaml": _CONTINUE},
    ),
    Host(
        "opencode",
        "opencode-ai",
        "opencode-linux-x64/bin/opencode",
        ("run", PROMPT),
        {
            "OPENCODE_CONFIG": f"{HOME}/opencode.json",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
        },
        {"opencode.json": json.dumps(_OPENCODE)},
    ),
)
"""In the order in which most people use them."""
