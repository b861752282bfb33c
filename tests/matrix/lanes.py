"""Which tests run side by side in which environment: tables of paths; nothing is started here.

A lane is one run of pytest. Many tests mostly wait, for servers, kills and clocks, so each environment has several
lanes and no core stands idle. Where a path of one lane lies below a path of another, the longer one has it; the lane
without a path has all else.
"""

from __future__ import annotations

from matrix.environments import Environment

Lanes = dict[str, tuple[str, ...]]

# The longest first, as they are begun in this order.
FULL: Lanes = {
    "rest": ("tests",),
    "frameworks": ("tests/integration", "tests/integrations", "tests/docs/test_pages.py"),
    "proofs": ("tests/benchmarks", "tests/crash", "tests/docs/examples"),
    "clients": (
        "tests/client",
        "tests/compatibility",
        "tests/conformance",
        "tests/integration/test_cluster.py",
        "tests/integration/test_javascript_clients.py",
        "tests/stores",
    ),
}
# What meets a framework. The rest is the same code on the same libraries, and runs everywhere with `--all`.
FRAMEWORKS: Lanes = {
    "frameworks": (
        "tests/integration",
        "tests/integrations",
        "tests/telemetry",
        "tests/session/test_current.py",
        "tests/support/test_environments.py",
        "tests/docs/test_handles_page.py",
        "tests/docs/test_pages.py",
        "tests/test_packaging.py",
    ),
    "clients": (
        "tests/client",
        "tests/docs/examples",
        "tests/integration/test_cluster.py",
        "tests/integration/test_javascript_clients.py",
    ),
}
BRIEF: Lanes = {
    "frameworks": ("tests/integration", "tests/integrations", "tests/docs/test_pages.py"),
    "rest": ("tests",),
    "stores": ("tests/client", "tests/stores"),
}
# What takes minutes: demos, campaigns, kills and other programs' clients. `--brief` leaves them to `make check`.
PROOFS = (
    "tests/benchmarks",
    "tests/compatibility",
    "tests/conformance",
    "tests/crash",
    "tests/docs/examples",
    "tests/fuzz",
    "tests/integration/test_cluster.py",
    "tests/integration/test_javascript_clients.py",
    "tests/support/test_leaks.py",
    "tests/test_packaging.py",
)


def lanes_of(environment: Environment, *, everything: bool, brief: bool) -> dict[str, list[str]]:
    """The lanes of an environment, each with what pytest is told.

    Args:
        environment: In the legacy one only what meets a framework runs, unless everything is asked for.
        everything: Every test in every environment.
        brief: Without what takes minutes.
    """
    if brief:
        return {lane: told(BRIEF, lane, PROOFS) for lane in BRIEF}
    lanes = FULL if everything or environment.spec == "main" else FRAMEWORKS
    return {lane: told(lanes, lane) for lane in lanes}


def told(lanes: Lanes, lane: str, without: tuple[str, ...] = ()) -> list[str]:
    """A lane's paths, and what lies below them and belongs elsewhere."""
    elsewhere = [path for other, paths in lanes.items() if other != lane for path in paths]
    below = [path for path in (*elsewhere, *without) if any(path.startswith(f"{own}/") for own in lanes[lane])]
    return [*lanes[lane], *(f"--ignore={path}" for path in dict.fromkeys(below))]
