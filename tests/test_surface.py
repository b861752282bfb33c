"""The public names and their members, on which users rely."""

import re
import subprocess
import sys
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import mcp_sessions
from mcp_sessions import Session, Sessions, State, errors
from mcp_sessions._errors import MCPSessionsError
from mcp_sessions._protocol.jsonrpc import REQUEST
from mcp_sessions._session.data import Data, SyncData
from mcp_sessions.events import EndedSession

NAMES = """
    Affinity ConfigurationError CreateRefused Data DataError KeyRing Limits MCPSessionMiddleware MCPSessionsError
    Options Principal Session Sessions State StateError Telemetry Tracking TransportSessions Wire add_sessions
    current_session from_env require_session
"""
MODULES = """
    client dialects errors events handles integrations.fastapi integrations.fastmcp keys operator stores telemetry
    testing
"""

MEMBERS = {
    Session: (
        "client client_capabilities correlation created_at data end expires_at id kind principal ref state traceparent"
    ),
    EndedSession: "created_at data expires_at ref",
    Data: "delete get increment set sync update",
    SyncData: "delete get increment set update",
    State: "clear get items keys pop popitem section setdefault update values",
    Sessions: "check close count each end end_all end_all_before of open",
}

WHEN_ASKED_FOR = ["_server.operator", "integrations._starlette"]


def test_the_public_names_are_these() -> None:
    assert mcp_sessions.__all__ == NAMES.split()


@pytest.mark.parametrize("module", ["mcp_sessions", *(f"mcp_sessions.{name}" for name in MODULES.split())])
def test_what_a_module_exports_is_there_and_nothing_else(module: str) -> None:
    """Though some of it is imported only when it is asked for."""
    found = import_module(module)
    assert all(getattr(found, name) is not None for name in found.__all__)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Basket'"):
        found.Basket  # noqa: B018  # asking is enough


@pytest.mark.parametrize("of", MEMBERS, ids=lambda of: of.__name__)
def test_the_public_members_are_these(of: type) -> None:
    """The members without an underscore are public."""
    assert [name for name in dir(of) if not name.startswith("_")] == sorted(MEMBERS[of].split())


def test_every_public_error_is_an_mcp_sessions_error() -> None:
    """`except MCPSessionsError` catches every public error."""
    found = [getattr(module, name) for module in (mcp_sessions, errors) for name in module.__all__]
    raised = [one for one in found if isinstance(one, type) and issubclass(one, Exception)]
    assert {*raised} == {getattr(errors, name) for name in errors.__all__}
    assert all(issubclass(error, MCPSessionsError) for error in raised)
    assert {error.__module__ for error in raised} == {"mcp_sessions.errors"}


def test_rarely_needed_modules_are_imported_on_demand() -> None:
    """Modules that most servers do not need cost no time at import."""
    modules = [f"mcp_sessions.{name}" for name in WHEN_ASKED_FOR]
    source = f"""
import sys
import mcp_sessions
assert not [name for name in {modules} if name in sys.modules]
from mcp_sessions import *
assert all(name in sys.modules for name in {modules})
assert mcp_sessions.Sessions is Sessions
"""
    subprocess.run([sys.executable, "-c", source], check=True)


STAND_INS = {
    "headers": [],
    "scope": {"headers": []},
    "kind": REQUEST,
    "_claims": SimpleNamespace(ref="ses_a"),
    "claims": SimpleNamespace(ref="ses_a"),
}
HARMLESS = """
    Affinity Answers CallFinished CallStarted Caller Claims Correlation CreateLimit Created Default Dialect Ended
    EndedAll EndedSession Ending Facts Fault Found Handle Holder Hook Identity Key Limits ListedSession LiveSession
    LiveSessionCounter Namespace NoCredential OptionType Options Outcome PolicyRequest Principal Reason Record
    Recorded Refused RequestRefused Roster Row Rules Seal Services SessionCreated SessionDeleted SessionPage
    SessionToEnd SessionUsed Snapshot State StoreUsage Sweeper Telemetry Terminator Tracking TransportSessions Wire
    _Answer _Change _Client _Endpoint _Error _Event _Found _Header _Hello _Owner _Pending _Result _Tool
"""
"""Classes that show fields: names, hashes, times, and what shows itself as little as these."""

CREDENTIAL = re.compile(
    r"\A(bearer|text|token|(session|client|server|orphaned)_id|state|headers|body|payload|item|scope|material|message)\Z"
)


def test_no_class_shows_a_credential() -> None:
    """Tracebacks print locals: of each class of the package, filled, only harmless fields appear."""
    root = Path(mcp_sessions.__file__).parent
    files = [path.relative_to(root).with_suffix("") for path in root.rglob("*.py") if path.stem != "__main__"]
    modules = [import_module(".".join(["mcp_sessions", *path.parts]).removesuffix(".__init__")) for path in files]
    classes = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    shown = {}
    for kind in classes:
        if not kind.__module__.startswith("mcp_sessions") or kind.__module__.startswith("mcp_sessions.testing"):
            continue  # a failing test shows what it sent
        fields = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
        if fields is not None:
            made = kind(**{name: STAND_INS.get(name, f"<{name}>") for name in fields})
        elif is_dataclass(kind):
            made = object.__new__(kind)
            for name in (fields := [field.name for field in dataclass_fields(kind)]):
                object.__setattr__(made, name, f"<{name}>")
        else:
            continue
        text = repr(made) + repr(getattr(made, "__rich_repr__", list)())
        if found := [name for name in fields if f"<{name}>" in text]:
            shown[kind.__name__] = found
    assert shown.keys() - {*HARMLESS.split()} == set()
    credentials = {(kind, name) for kind, names in shown.items() for name in names if CREDENTIAL.match(name)}
    harmless = {("Reason", "message"), ("Outcome", "message"), ("Principal", "client_id")}
    assert credentials <= harmless | {("Start", "token")}  # of a context variable
