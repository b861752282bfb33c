"""A text that only stands for a secret is refused, in every way that a key can arrive, and never shown."""

import base64
import hashlib
import os
import random
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from pages import DOCS
from signers import NEW, OLD, private_pem

from mcp_sessions import ConfigurationError, KeyRing, MCPSessionMiddleware, Telemetry
from mcp_sessions._cli import main
from mcp_sessions._tokens.keyfile import key_source
from mcp_sessions._tokens.placeholders import form_of
from mcp_sessions.handles import Handles

NOW = 1_800_000_000.0
ROOT: Final = DOCS.parent

PLACEHOLDERS: Final = (
    *(
        "CHANGE_ME_TO_A_LONG_AND_RANDOM_VALUE_1",
        "changeme-changeme-ChangeMe-changeit",
        "please-change-this-in-production!",
    ),
    *(
        "replace-me-with-32-random-bytes-now",
        "your-256-bit-secret-0123456789abcdef",
        "YOUR_SECRET_KEY_GOES_HERE_abcdefghijkl",
    ),
    *(
        "insert-a-long-random-value-of-your-own",
        "put_a_real_value_in_place_of_this_text",
        "TODO: generate a value before launch",
    ),
    *(
        "xxxx-xxxxxxxx-xxxx-my-signing-xxxx-xxxx",
        "placeholder for the signing key of shop",
        "toBeModified1toBeModified2toBeModified3",
    ),
    "DO NOT USE THIS VALUE. INSTEAD, CREATE ONE",
)
TEMPLATES: Final = (
    *(
        "<a long random string, kept private>",
        "${MCP_SESSIONS_SIGNING_SECRET_OF_SHOP}",
        "prefix-${SIGNING_VALUE}-of-the-shop-eu1",
    ),
    *(
        "$MCP_SESSIONS_SIGNING_SECRET_OF_SHOP",
        "$(openssl rand -base64 32 | tr -d '\\n')",
        "`openssl rand -base64 32 | tr -d '='`",
    ),
    *('$(python -c "import secrets; print(secrets.token_urlsafe(32))")', "{{ .Values.mcp.sessions.signing.value }}"),
    *(
        "%MCP_SESSIONS_SIGNING_VALUE_OF_SHOP%",
        "%(mcp_sessions_signing_value_of_shop)s",
        "__MCP_SESSIONS_SIGNING_VALUE_SHOP__",
    ),
    *(
        "@MCP_SESSIONS_SIGNING_VALUE_OF_SHOP@",
        "#{MCP_SESSIONS_SIGNING_VALUE_OF_SHOP}#",
        "<%= ENV.fetch('SIGNING_VALUE_SHOP') %>",
    ),
    *("[the signing value of the shop goes in]", "{mcp_sessions_signing_value_of_the_shop}"),
)
PLACES: Final = (
    *(
        "env:MCP_SESSIONS_SIGNING_SECRET_OF_SHOP",
        "file:/run/secrets/mcp-sessions-signing",
        '"file:/run/secrets/mcp-sessions-signing"',
    ),
    *(
        "ENV : MCP_SESSIONS_SIGNING_SECRET_OF_SHOP",
        "MCP_SESSIONS_SIGNING_SECRET_OF_SHOP",
        "/run/secrets/mcp-sessions-signing-of-shop",
    ),
    *(
        "~/secrets/mcp-sessions-signing-of-shop",
        "op://production/mcp-sessions/credential",
        "vault:secret/data/mcp-sessions#signing-key",
    ),
    "arn:aws:secretsmanager:eu-west-1:123:mcp",
    "https://vault.example.test/secrets/signing",
)
PUBLISHED: Final = (
    "a-string-secret-at-least-256-bits-long",  # jwt.io
    "09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7",  # FastAPI
    "192b9bdd22ab9ed4d12e236c78afcb9a393ec15f71bbf5dc987d54727823bcbf",  # Flask
    "django-insecure-#2y5c7kq!v9n3w@x8r6t4z1m0",
    "404E635266556A586E3272357538782F413F4428472B4B6250645367566B5970",  # Spring
    "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",  # RFC 7515
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    "keyboard cat keyboard dog keyboard cat",
)
WORDS: Final = (
    *(
        "secret0000000000000000000000000001234567",
        "my-super-secret-jwt-signing-key-12345678",
        "test_secret_key_for_development_only_0123456789",
    ),
    *("super-secret-jwt-token-with-at-least-32-characters-long", "passwordpassword-12345678901-password-my"),
    *(
        "reallyreallyreallyreallyverysafe",
        "abcdefghijklmnopqrstuvwxyz0123456789",
        "zyxwvutsrqponmlkjihgfedcba9876543210",
    ),
)
TEXTS: Final = (*PLACEHOLDERS, *TEMPLATES, *PLACES, *PUBLISHED, *WORDS)


def refusal(make: Callable[..., object], *args: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        make(*args, **options)
    return str(caught.value)


# --- texts that only stand for a secret ----------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_a_placeholder_is_never_a_secret(text: str) -> None:
    """The error names its place and the remedy, and does not show it."""
    for form in (text, text.encode(), f"  {text}\n"):
        message = refusal(KeyRing, [OLD, form])
        assert message.startswith(("keys[1] is ", "keys[1] names a place"))
        assert "secrets.token_urlsafe(32)" in message
        assert text not in message


def jwk(d: str) -> bytes:
    return base64.urlsafe_b64decode(d + "=")


def test_a_published_key_is_refused_as_bytes() -> None:
    assert "published" in refusal(KeyRing, [bytes.fromhex(PUBLISHED[1])])


@pytest.mark.parametrize(
    "pem",
    [
        private_pem(Ed25519PrivateKey.from_private_bytes(jwk("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"))),
        private_pem(
            derive_private_key(int.from_bytes(jwk("jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI"), "big"), SECP256R1())
        ),
        (
            "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgevZzL1gdAFr88hb2\n"
            "OF/2NxApJCzGCEDdfSp6VQO30hyhRANCAAQRWz+jn65BtOMvdyHKcvjBeBSDZH2r\n"
            "1RTwjmYSi9R/zpBnuQ4EiMnCqfMPWiZqB4QdbAd0E7oH50VpuZ1P087G\n-----END PRIVATE KEY-----"
        ),
    ],
    ids=["RFC 8037", "RFC 7515", "jwt.io"],
)
def test_a_published_private_key_is_refused(pem: str) -> None:
    assert "published" in refusal(KeyRing, [pem])


ARRIVALS: Final[dict[str, Callable[[str, Path], object]]] = {
    "a variable": lambda text, path: key_source("env:HELD"),
    "a file": lambda text, path: key_source(f"file:{path}"),
    "the middleware": lambda text, path: MCPSessionMiddleware(lambda *_: None, keys=text),  # type: ignore[arg-type]
    "a list": lambda text, path: key_source([OLD, text]),
    "handles": lambda text, path: Handles(text),
}


@pytest.mark.parametrize("arrive", ARRIVALS.values(), ids=ARRIVALS)
@pytest.mark.parametrize("text", [PLACEHOLDERS[0], TEMPLATES[1], PUBLISHED[1], WORDS[0]])
def test_a_placeholder_is_refused_wherever_it_comes_from(
    arrive: Callable[[str, Path], object], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{OLD}\n{text}\n")
    path.chmod(0o600)
    with patch.dict(os.environ, HELD=f"{OLD},{text}"):
        message = refusal(arrive, text, path)
    assert "secrets.token_urlsafe(32)" in message
    assert text not in message


def test_the_command_line_refuses_a_placeholder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELD", PUBLISHED[1])
    assert main(["verify", "--keys", "env:HELD", "--file", "/dev/null"]) == 2
    shown = capsys.readouterr()
    assert 'keys="env:HELD" is ' in shown.err
    assert PUBLISHED[1] not in shown.err + shown.out


def test_a_placeholder_that_arrives_later_keeps_the_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path := tmp_path / "keys").write_text(OLD)
    source = key_source(f"file:{path}")
    ring = source(NOW)
    path.write_text(PLACEHOLDERS[0])
    assert source(NOW + 1) is ring
    assert "keeping the previous keys" in caplog.text
    assert PLACEHOLDERS[0] not in caplog.text


@pytest.mark.parametrize("token", ["file:/run/secrets/inspector", "${INSPECTOR_TOKEN_OF_SHOP}", "changeme-changeme-1"])
def test_the_inspector_has_no_placeholder_for_a_password(token: str) -> None:
    message = refusal(Telemetry, inspector_token=token)
    assert message.startswith("telemetry.inspector_token= ")
    assert token not in message


UNRESOLVED: Final = (
    *("projects/123/secrets/mcp-key/versions/latest", "gcp:projects/1/secrets/mcp-sessions-key-1"),
    *("ENC[AES256_GCM,data:abcd1234abcdef,iv:xx,tag:yy]", 'os.environ["MCP_SESSIONS_KEYS_FOR_PRO"]'),
    *("MCP_SESSIONS_KEYS=file:/run/secrets/key1", "MCP_SESSIONS_KEYS=kT9xQ2mP7vLs4RbW8nYc1JdF6gHa3EuZo5i"),
    *("ｆｉｌｅ:/run/secrets/mcp-sessions-keyfile", "fi\u200ble:/run/secrets/mcp-sessions-keyfile"),
    *("\u2060env:MCP_SESSIONS_KEYS_FOR_PRODUCTION_1", "ｅｎｖ:MCP_SESSIONS_KEYS_FOR_PRODUCTION_1"),
    *("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
    *(
        "base64:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY",
        "3031323334353637383961626364656630313233343536373839616263646566",
    ),
)


@pytest.mark.parametrize("text", UNRESOLVED)
def test_a_reference_or_sequence_is_never_a_secret(text: str) -> None:
    message = refusal(key_source, text)
    assert "secrets.token_urlsafe(32)" in message
    assert text not in message


@pytest.mark.parametrize("arrival", ["a variable", "a file", "a value", "second in a file", "a place"])
def test_a_byte_order_mark_is_no_part_of_a_key(arrival: str, tmp_path: Path) -> None:
    """Wherever it is: an editor writes it, and a shell reads it with the rest."""
    (path := tmp_path / "keys").write_text(
        {"a file": f"\ufeff\ufeff{OLD}", "a place": OLD}.get(arrival, f"{NEW}\n\ufeff{OLD}")
    )
    path.chmod(0o600)
    held = f"\ufefffile:{path}" if arrival == "a place" else f"\ufeff{OLD}"
    option = f"file:{path}" if arrival.endswith("file") else f"\ufeff{OLD}" if arrival == "a value" else "env:HELD"
    assert kids(option, HELD=held) == repr(KeyRing([NEW, OLD] if arrival == "second in a file" else [OLD]))


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("CHANGE_ME_CHANGE_ME_CHANGE_ME_12345", "is a placeholder"),
        ("file:", "names no file"),
        (" env : ", "names no variable"),
    ],
)
def test_the_remedy_fits_what_is_wrong(text: str, remedy: str) -> None:
    assert remedy in refusal(key_source, text)


# --- where a value names the place of a secret ---------------------------------------------------


def kids(keys: Any, **environ: str) -> str:
    with patch.dict(os.environ, environ):
        return repr(key_source(keys)(NOW))


@pytest.mark.parametrize(
    ("keys", "held", "expected"),
    [
        ("env:HELD", "file:{path}", [NEW]),
        ("env:HELD", " File: {path} ", [NEW]),
        (" ENV:HELD\n", "{old}", [OLD]),
        ("env:HELD", "{old}, file:{path}", [OLD, NEW]),
        ("env:HELD", "file:{path}\nenv:OTHER", [NEW, OLD]),
        (["env:HELD", "file:{path}"], "env:OTHER", [OLD, NEW]),
    ],
)
def test_a_variable_may_name_the_place_of_its_secret(keys: Any, held: str, expected: list[str], tmp_path: Path) -> None:
    (path := tmp_path / "keys").write_text(NEW)
    path.chmod(0o600)
    option = [one.format(path=path) for one in keys] if isinstance(keys, list) else keys
    assert kids(option, HELD=held.format(path=path, old=OLD), OTHER=OLD) == repr(KeyRing(expected))


def test_a_file_that_a_variable_names_is_read_again(tmp_path: Path) -> None:
    (path := tmp_path / "keys").write_text(OLD)
    with patch.dict(os.environ, HELD=f"file:{path}"):
        source = key_source("env:HELD")
    path.write_text(NEW)
    assert repr(source(NOW)) == repr(KeyRing([NEW]))


@pytest.mark.parametrize("held", ["env:HELD", "env:OTHER", " ENV: HELD", f"{OLD},env:OTHER"])
def test_variables_that_name_each_other_are_refused(held: str) -> None:
    with pytest.raises(ConfigurationError, match="names itself"):
        kids("env:HELD", HELD=held, OTHER="env:HELD")


@pytest.mark.parametrize("content", ["env:HELD_BY_A_VARIABLE_OF_THE_SERVER", "file:/run/secrets/other-keys-of-shop"])
def test_a_file_holds_secrets_and_not_their_places(content: str, tmp_path: Path) -> None:
    (path := tmp_path / "keys").write_text(content)
    assert "names a place" in refusal(key_source, f"file:{path}")


# --- what is a secret ----------------------------------------------------------------------------


@given(st.binary(min_size=32, max_size=32))
def test_random_secrets_are_accepted(seed: bytes) -> None:
    """In the forms in which tools print them."""
    raw = hashlib.sha256(seed).digest()
    for form in (raw, raw.hex(), base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode().rstrip("=")):
        assert KeyRing([form]).signing.algorithm == "HS256"
    assert KeyRing([f"mcp_secret_{raw.hex()}"]).signing.algorithm == "HS256"
    assert KeyRing(["a passphrase of several words that nobody knows"]).signing.algorithm == "HS256"


PRINTED: Final = string.ascii_letters + string.digits + string.punctuation
GENERATORS: Final[dict[str, Callable[[random.Random], str]]] = {
    "base64": lambda chance: base64.b64encode(chance.randbytes(48)).decode(),
    "base64url": lambda chance: base64.urlsafe_b64encode(chance.randbytes(32)).decode(),
    "base85": lambda chance: base64.b85encode(chance.randbytes(32)).decode(),
    "ascii85": lambda chance: base64.a85encode(chance.randbytes(32)).decode(),
    "Django": lambda chance: "".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789!@#$%^&*(-_=+)", k=50)),
    "Laravel": lambda chance: f"base64:{base64.b64encode(chance.randbytes(32)).decode()}",
    "punctuation": lambda chance: "".join(chance.choices(PRINTED, k=40)),
    "of an inspector": lambda chance: "".join(chance.choices(PRINTED, k=16)),
}
OFTEN: Final = {  # what the rules of before took for templates and places, once in some hundreds
    "e&g8v83b$(3)z^q=r8&ul6q^t85kxf5xzbot^vn(0v5hw-sev#",
    "<_@yq(j#*g}((WA2g.+SZFtZ`)?|o:JU^}xkxtv>",
    './T=+k.9A/#B9UOd;0fp["h]o<Rb+hQlT[Z8/L}!',
    "@_}~6P5teAlg3ju0H6$}ekKHUprFo6<yrygdd>!{",
    "[nFV?:D7Bq/QE%G.RLb.<,E^oe>aWZ`2\\.#odI*]",
    "base64://JEgMjMR+N/g4Nzcq9/bsAQEuAZe/242VYhwB28dWc=",
}


def test_keys_that_look_a_little_like_templates_are_accepted() -> None:
    assert [text for text in sorted(OFTEN) if form_of(text) is not None] == []


@pytest.mark.parametrize("count", [500, pytest.param(200_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)
def test_no_random_key_has_the_form_of_a_placeholder(generate: Callable[[random.Random], str], count: int) -> None:
    """The rules of before refused one in some hundreds."""
    chance = random.Random(20)
    assert [text for text in (generate(chance) for _ in range(count)) if form_of(text) is not None] == []


def test_what_the_pages_show_is_no_usable_secret() -> None:
    """A text of the documentation or an example that is pasted as a key is refused, or is read from elsewhere."""
    pages = [*DOCS.glob("*.md"), ROOT / "README.md", *(ROOT / "examples").rglob("*")]
    found: set[str] = set()
    for page in (
        page for page in pages if page.is_file() and page.suffix in {".md", ".py", ".env", ".yaml", ".service"}
    ):
        text = page.read_text("utf-8")
        found |= set(re.findall(r"""keys=\[?["']([^"']+)["']""", text))
        found |= {match.strip("\"'") for match in re.findall(r"MCP_SESSIONS_KEYS=(\$\([^\n]*\)|\S+)", text)}
    assert found
    for text in found - {"..."}:
        assert refusal(KeyRing, [text])
