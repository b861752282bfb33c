"""Texts that only stand for a secret: anyone could write them, and so sign with them.

A table of forms, a list of published keys, and a count of what is left of a text without common words and sequences.
A form is that of a whole text, or has a name, a word or a space that random characters rarely make: each of the usual
generators (hexadecimal digits, base64, base85, letters, digits and punctuation) meets one less than once in a million.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Final
from unicodedata import category, normalize

PLACE: Final = "the name or the place of a secret"
PUBLISHED: Final = "a published key, which everyone knows"

_NAME: Final = r"(?:[A-Z][A-Z0-9_]{7,}|[a-z][a-z0-9_.-]{7,})"  # within other text
_WHOLE: Final = r"(?:[A-Z_][A-Z0-9_. -]*|[a-z_.][a-z0-9_. -]*|[A-Za-z][\w.,-]*(?: [\w.,-]+)+)"  # all there is
_FORMS: Final[Mapping[str, tuple[str, ...]]] = {
    PUBLISHED: (
        r"a-(valid-)?string-secret",  # jwt.io, as are "your-256-bit-secret" and so on
        r"(?i)keyboard\s*cat",  # Express
        r"(?i)some[\W_]*random[\W_]*(string|key|secret|value)",  # Laravel
        r"^={8,}",  # Spring
        r"(?i)^(0x)?000102030405060708090a0b",  # test vectors
    ),
    "a placeholder": (
        r"(?i)change[\W_]*(me|it|this|that|the|your|in|before|for)|(?<![a-z])chang(e|ed|ing)(?![a-z])",
        r"(?i)replace[\W_]*(me|it|this|that|the|your|with|by|in)|(?<![a-z])(replace|insert|modify)(?![a-z])",
        r"(?i)(?<![a-z])(put|enter|paste|fill|set|use|type|generate|provide)[ _-](in[ _-])?(an?|the|your|here)[ _-]",
        r"(?i)(?<![a-z])your[\W_]*([a-z0-9]+[\W_]*){0,5}(secret|keys?|token|password|value)(?![a-z])",
        r"(?i)placeholder|insecure|do[\W_]*not[\W_]*use|not[\W_]*so[\W_]*secret|to[\W_]*be[\W_]*(modified|replaced|set)",
        r"(?i)x{6,}|(?-i:^([Tt]odo|TODO|[Ff]ixme|FIXME)[\W_])|(?<![a-z])redacted(?![a-z])",
    ),
    "a template that nothing has filled in": (
        rf"\$\{{{_NAME}([:?+=-][^}}]*)?\}}|^\$\{{.* .*\}}$",
        r"^\$\{([A-Z][A-Z0-9_]{3,}|[a-z][a-z0-9_.]{3,})([:?+=-].*)?\}$|^\$([A-Z_][A-Z0-9_]*|[a-z]+(_[a-z0-9]+)*)$",
        r"\$\{(file|env|ssm|self|opt|param|secrets?|vault)[:(.]|^\$\{\{\s",
        r"\$\([a-z]{2,} [^)]*\)|^\$\(.* .*\)$|^\$\([\w./-]+\)$|^`[a-z]+ .*`$",
        rf"\{{\{{[-~]?\s|\{{\{{\.?{_NAME}\}}\}}|^\{{\{{.*[\s.].*\}}\}}$|\{{%[-+]?\s|<%[=-]?\s|<%=?{_NAME}%>",
        rf"^\(\([\w./-]{{3,}}\)\)$|#\{{{_NAME}\}}|^%\(\w+\)s$",
        rf"^<+{_WHOLE}>+$|<[a-z][a-z _-]{{9,}}>|<[A-Z][A-Z _-]{{9,}}>",
        rf"^%+{_WHOLE}%+$|%[A-Z_]{{10,}}%|^__\w+__$|__[A-Z][A-Z0-9_]{{7,}}__|^@+{_WHOLE}@+$",
        rf"^\[+{_WHOLE}\]+$|^\{{+{_WHOLE}\}}+$",
    ),
    "a line that sets a variable": (
        r"^(export |set )?[A-Z][A-Z0-9]{2,}(_[A-Z0-9]{3,}){2,}\s*=|^(export |set )?[A-Z_]+\s*=\s*[\"']?(env|file)\s*:",
    ),
    PLACE: (
        r"(?i)^\W*(env|file)\s*:",
        r"^\W?(?!base64)[a-z][a-z0-9+]{2,}://|^\W?(op|s3|gs)://",
        r"^\W?(arn|ssm|ref|sops|vault|gcp|gsm|aws|azure|keyring|k8s-secret|secretsmanager|keyvault|doppler):",
        r"^@Microsoft\.KeyVault|^!(vault|ref|sub|Ref|Sub|GetAtt)\b|^ENC\[[A-Z0-9_]+,|^projects/[\w-]+/secrets/",
        r"^(os\.)?(environ|getenv)\W|^process\.env\.|^(ENV|Deno\.env|System)\W(fetch|getenv|get)?\W|^env\.[A-Z_]{4}",
        r"^\W*/(run|etc|var|home|root|opt|mnt|srv|usr|tmp|app|data|vault|secrets?)/|^(~|\.\.?)/[a-z0-9_./-]*$",
        r"^[A-Z][A-Z0-9]*(_[A-Z0-9]+){2,}$",  # of a variable
    ),
}
_PATTERNS: Final = [(what, re.compile(form, re.DOTALL)) for what, forms in _FORMS.items() for form in forms]

# Without case, and within longer texts as well. Of private keys the value in base64url, as JWK has it.
_PUBLISHED: Final = (
    "09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7",  # FastAPI's tutorial
    "192b9bdd22ab9ed4d12e236c78afcb9a393ec15f71bbf5dc987d54727823bcbf",  # Flask's
    *(  # of Spring and JWT
        "404e635266556a586e3272357538782f413f4428472b4b6250645367566b5970",
        "413f4428472b4b6250655368566d5970337336763979244226452948404d6351",
        "5367566b59703373367639792f423f4528482b4d6251655468576d5a71347437",
        "586e3272357538782f413f4428472b4b6250655368566b597033733676397924",
        "3cfa76ef14937c1c0ea519f8fc057a80fcd04a7420f8e8bcd0a7567c272e007b",
        "9a4f2c8d3b7a1e6f45c8a0b3f267d8b1d4e6f3c8a9d2b5f8e3a9c8b5f6v8a3d9",
        "afafasfafafasfasfasfafacasdasfasxasfacasdfacasdfasfasfdafasfasdaadscsdfadcvsgcfvadxccadwavfsfarvf",
    ),
    "3ek6fd+o0+c7tzbnvfjpmkndi2yaraakzqlk8o2ikoxqu4nf7edah8s3twphwrdwt6r",  # Hasura's manual
    *("255d861b-5ea1-5996-9aa3-922530ec40b1", "6116487b-cda1-52c2-b5b5-c8022c45e263"),  # Directus'
    "aym1sysppbydfgzld3umj1qzkobwvmkoqq-estjqlr_t-1qs0gzh75aktmn3yj0ips4hcguutwjazzr1z9caow",  # RFC 7515, A.1
    "hjtxiz2usn5kbqfbttnwbpdmhkv8fjg-onbc6mxccyg",  # RFC 7520, 3.5
    "jpsqnngqml-ybiffh1136cspyg6-0iy7x1fce9-e9li",  # RFC 7515, A.3
    "nwgxne_9wmc6her0kuwsxerjxwl7mmkzcdusaxyuf2a",  # RFC 8037, A.1
    "evzzl1gdafr88hb2of_2nxapjczgceddfsp6vqo30hw",  # jwt.io, ES256
)

_WORDS: Final = re.compile(
    r"secret|password|passwd|passphrase|token|sessions?|signing|signature|shared|private|development|develop|testing"
    r"|production|staging|example|sample|default|dummy|foobar|qwerty|asdf|super|really|very|safe|secure|strong|random"
    r"|characters?|string|bytes|bits|least|long|minimum|only|demo|local|with|that|this|admin|server|hmac|hs256|sha256"
    r"|(?<![a-z0-9])(my|our|the|an?|is|of|at|for|in|to|and|or|not|app|api|jwt|mcp|dev|test|prod|env|keys?|pwd)"
    r"(?![a-z0-9])",
    re.IGNORECASE,
)
_SEPARATORS: Final = re.compile(r"[\W_]")
_MIN_REST: Final = 12  # characters of a text besides common words and padding
_MIN_UNORDERED: Final = 8  # characters of a text besides sequences


def placeholder(secret: bytes) -> str | None:
    """Return what a secret is if it only stands for one, or None."""
    if is_published(secret.hex()):
        return PUBLISHED
    try:
        text = secret.decode("utf-8").strip()
    except UnicodeDecodeError:
        return None
    if _is_simple(_decoded(text)):
        return "an encoded sequence that anyone would try"
    if (form := form_of(text)) is not None or not text.isprintable():
        return form
    if _without_runs(_SEPARATORS.sub("", _WORDS.sub("", text)), steps=(0,)) < _MIN_REST:
        return "made of common words and padding"
    return "a sequence that anyone would try" if _without_runs(text, steps=(-1, 0, 1)) < _MIN_UNORDERED else None


def form_of(text: str) -> str | None:
    """Return what a text is, by the forms of placeholders and the keys that are published, or None."""
    # As it looks: without letters of full width, and without characters that take no room.
    text = "".join(one for one in normalize("NFKC", text) if category(one) != "Cf").strip()
    if is_published(text):
        return PUBLISHED
    return next((what for what, pattern in _PATTERNS if pattern.search(text)), None)


def is_published(text: str) -> bool:
    """Return True if a text holds a key that was published."""
    lowered = text.lower()
    return any(known in lowered for known in _PUBLISHED)


def _decoded(text: str) -> bytes:
    """Return the bytes that a text of hexadecimal digits or base64 stands for; empty if it is neither."""
    encoded = text.removeprefix("base64:").rstrip("=").replace("-", "+").replace("_", "/")
    with suppress(ValueError):
        return bytes.fromhex(text)
    with suppress(ValueError):
        return b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    return b""


def _is_simple(raw: bytes) -> bool:
    """Return True if bytes, of which there are some, repeat themselves or are mostly a sequence."""
    repeats = raw in (raw + raw)[1:-1]
    return raw != b"" and (repeats or _without_runs(raw.decode("latin-1"), steps=(-1, 0, 1)) < _MIN_UNORDERED)


def _without_runs(text: str, *, steps: tuple[int, ...]) -> int:
    """Count the characters that are in no run of four or more whose neighbours are such a step apart."""
    count, run, before = len(text), 1, 0
    for one, following in pairwise(text):
        step = ord(following) - ord(one)
        is_step = step in steps
        run = run + 1 if is_step and step == before else 1 + is_step
        before = step
        count -= 4 if run == 4 else int(run > 4)
    return count
