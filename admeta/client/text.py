"""Text of others on its way to people: without secrets, and without characters that control a terminal."""

from __future__ import annotations

import re

_SECRETS = (
    (re.compile(r"\badm_[A-Za-z0-9_-]{8,}"), "adm_***"),
    # The password of an address ends at the last @ before a space, because a password may contain @, / and ?.
    (re.compile(r"(://[^\s:/@]*:)\S+(@)"), r"\1***\2"),
    (re.compile(r"(?i)([?&;][^\s=&;]*(?:password|passwd|passphrase|secret|token)=)[^\s&;'\"]+"), r"\1***"),
    (re.compile(r"(?i)(\bauthorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)\s+)[^\s'\",]+"), r"\1***"),
    (re.compile(r"(?i)(\bpassword['\"]?\s*[:=]\s*['\"]?)[^\s'\",;&]+"), r"\1***"),
)

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text without colours, with every other character that controls a terminal written as its escape."""
    text = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def without_secrets(text: str) -> str:
    """The text with tokens, and the passwords of addresses, replaced by ***."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
