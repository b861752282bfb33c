"""Keys that sign and seal sessions, for `keys=` and for programs that rotate them."""

from ._tokens.keys import Key, KeyRing

__all__ = ["Key", "KeyRing"]
