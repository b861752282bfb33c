"""Secrets and keys of tests, the same ones on every run."""

from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

OLD: Final = "vB1kTn0RzJmYwq3uXo7sLd5cHf9aGe2i"
NEW: Final = "Qe8pZt4yUw6rNb2mKc0xVh5jLs7dFg1a"
ED25519: Final = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
P256: Final = ec.derive_private_key(0x1234567890ABCDEF, ec.SECP256R1())

Private = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey


def private_pem(key: Private) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def public_pem(key: Private) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
