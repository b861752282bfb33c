"""`Sessions`: list, count and end the recorded sessions of a deployment from any program that has its store."""

from ._server.operator import EndedAll, Sessions
from .stores import Record

__all__ = ["EndedAll", "Record", "Sessions"]
