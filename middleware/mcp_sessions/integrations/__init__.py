"""Sessions in the frameworks: where handlers of FastAPI and FastMCP look for them.

No framework but Starlette is imported with a module here: applications are known by their shape and class names.
"""

from ._starlette import lifespan_of

__all__ = ["lifespan_of"]
