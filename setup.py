"""The optional reader in C; everything else about the package is in `pyproject.toml`.

It is built where a C compiler is, one file for all versions of CPython, and left out elsewhere: nothing needs it.
`MCP_SESSIONS_NATIVE=0` leaves it out, too, which makes the wheel that fits every platform.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

READER = Extension(
    "mcp_sessions._protocol._native._reader",
    ["middleware/mcp_sessions/_protocol/_native/reader.c"],
    optional=True,
    py_limited_api=True,
)
SWITCH = os.environ.get("MCP_SESSIONS_NATIVE", "true")
if SWITCH.lower() not in {"true", "false", "1", "0"}:
    raise SystemExit(f"MCP_SESSIONS_NATIVE={SWITCH!r} must be `true` or `false`")
IS_ON = SWITCH.lower() in {"true", "1"}
# Free-threaded builds have no limited API, and PyPy would pay for the calls what it saves.
HAS_LIMITED_API = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")

if IS_ON and HAS_LIMITED_API:
    setup(ext_modules=[READER], options={"bdist_wheel": {"py_limited_api": "cp310"}})
else:
    setup()
