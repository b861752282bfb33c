"""Sessions in the frameworks: where handlers of FastAPI, FastMCP and the official SDK look for them.

No framework but Starlette is imported with a module here: applications are known by their shape and class names.
"""

from ._lifespans import lifespan_of

__all__ = ["lifespan_of"]
