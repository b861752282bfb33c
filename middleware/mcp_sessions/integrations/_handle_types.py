"""Handles as the types of tool arguments, for whatever reads types with pydantic: the official SDK, FastMCP.

A tool that asks for `Annotated[str, handles.type("basket")]` gets the verified id, with `Handle` for `str` the whole
handle; a wrong one is an error of the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from .._errors import ConfigurationError
from .._tokens.handles import Handle, HandleError, pattern

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["HandleOf", "HandleType", "Reader", "install"]

Reader = Callable[[str, object], Handle]
"""Verifies: takes the type and the value that was sent."""

_VALUES: Final[Mapping[object, Callable[[Handle], object]]] = {
    str: lambda handle: handle.id,
    Handle: lambda handle: handle,
}


class _Sent:
    """A value that was sent. pydantic quotes what it refuses, and so quotes `<not shown>`."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<not shown>"


class HandleType:
    """The annotation of a handle argument, in `Annotated` with `str` or `Handle`. Created by `Handles.type`."""

    __slots__ = ("_read", "_type")

    def __init__(self, type: str, read: Reader) -> None:
        self._type = type
        self._read = read

    def __get_pydantic_core_schema__(self, source: object, _: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        if source not in _VALUES:
            raise ConfigurationError(f'handles.type("{self._type}") stands beside str or Handle, not beside {source!r}')
        value = _VALUES[source]
        validators = (_Sent, lambda sent: value(self._verify(sent)))
        return core_schema.chain_schema([core_schema.no_info_plain_validator_function(one) for one in validators])

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        words = self._type.replace("_", " ")
        return {
            "type": "string",
            "pattern": pattern(self._type),
            "description": f"The handle of a {words}, copied exactly as it was given",
        }

    def _verify(self, sent: _Sent) -> Handle:
        from pydantic_core import PydanticCustomError

        try:
            return self._read(self._type, sent.value)
        except HandleError as error:
            raise PydanticCustomError(f"handle_{error.reason}", "{advice}", {"advice": str(error)}) from None

    def __repr__(self) -> str:
        return f"<HandleType {self._type}>"


class _Installed:
    type: ClassVar[Callable[[str], HandleType] | None] = None


def install(type_of: Callable[[str], HandleType]) -> None:
    """Make `HandleOf[...]` mean these handles from now on, wherever it is written in this process."""
    _Installed.type = staticmethod(type_of)


if TYPE_CHECKING:
    from typing import Literal as HandleOf
else:

    class HandleOf:
        """`HandleOf["basket"]`: the verified id of a basket, by the handles installed before.

        Type checkers see a `Literal`, the only type with this syntax.
        """

        def __class_getitem__(cls, type: str) -> Any:
            if _Installed.type is None:
                raise ConfigurationError(f'HandleOf["{type}"] needs handles: call Handles(keys, ...).install() before')
            return Annotated[str, _Installed.type(type)]
