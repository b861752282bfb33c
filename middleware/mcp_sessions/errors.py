"""The errors that applications catch, all of which are `MCPSessionsError`. What clients get is in `docs/errors.md`."""

from ._errors import (
    ConfigurationError,
    CreateRefused,
    DataError,
    DataGone,
    DataNotInteger,
    DataNotJSON,
    DataTooLarge,
    MCPSessionsError,
    StateClosed,
    StateError,
    StateNotJSON,
    StateTooLarge,
)

__all__ = [
    "ConfigurationError",
    "CreateRefused",
    "DataError",
    "DataGone",
    "DataNotInteger",
    "DataNotJSON",
    "DataTooLarge",
    "MCPSessionsError",
    "StateClosed",
    "StateError",
    "StateNotJSON",
    "StateTooLarge",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # so that a traceback names the place to import it from
