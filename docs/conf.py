"""How the documentation is built: `make docs`, offline, with every warning an error."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from typing import Any

from sphinx.ext.napoleon import GoogleDocstring
from sphinx.pycode import ModuleAnalyzer

from mcp_sessions import Options, integrations
from mcp_sessions._server.environment import GROUPS
from mcp_sessions._server.options import CoreOptions

project = "mcp-sessions"
author = "The mcp-sessions authors"
project_copyright = author
release = version = installed_version("mcp-sessions")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_llms_txt"]
default_role = "code"  # single backquotes in docstrings
exclude_patterns = ["_build", "_templates"]

# llms.txt and llms-full.txt, for coding agents: all pages, and the examples that pages include.
llms_txt_summary = (
    "An ASGI middleware that gives MCP servers sessions: tools remember each conversation, on every worker, with "
    "unchanged clients, and traces group its calls."
)
llms_txt_code_files = ["+:../examples/*.py", "+:../examples/deployment/*"]
llms_txt_exclude = ["changelog", "contributing"]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_exclude = ".linenos, .gp, .go"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # the name of a default, not all of its fields
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
maximum_signature_line_length = 60  # a longer signature has one parameter a line

# No inventory of another project is fetched: the gate runs without a network. So a reference has to be found when it
# is to a name of ours, and may stay plain text when it is to anybody else's.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!mcp_sessions\.).*"),
    (r"py:class", r"mcp_sessions\..*\.(_Self|App|Request)"),
]

html_theme = "furo"
html_title = "mcp-sessions"
html_baseurl = "https://mcp-sessions.readthedocs.io/en/latest/"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
templates_path = ["_templates"]
html_theme_options = {
    "source_repository": "https://github.com/mcp-sessions/mcp-sessions/",
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": ["view", "edit"],
}

# The description of a field may have a colon; what stands before it is not a type.
GoogleDocstring._consume_inline_attribute = lambda self: ("", self._consume_to_end())  # noqa: SLF001 - has no option

# How a field of an option object is checked stands in its annotation; a reader wants the type alone.
assert integrations  # imported by now, since it reads these annotations
inits: Any = [group.__init__ for group in GROUPS.values()]
for annotated in (one.__annotations__ for one in (*GROUPS.values(), *inits, Options)):
    plain: dict[str, Any] = {name: getattr(kind, "__origin__", kind) for name, kind in annotated.items()}
    annotated.update(plain)

# At runtime a `TypedDict` has no base class, so Sphinx would not look there for the docstrings of inherited keys.
own, inherited = (ModuleAnalyzer.for_module(one.__module__) for one in (Options, CoreOptions))
inherited.analyze()
own.analyze()
own.attr_docs |= {
    ("Options", key): docs for (_, key), docs in inherited.attr_docs.items() if key in Options.__annotations__
}
