"""Secrets in text: what every message, log line and table leaves out."""

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


def without_secrets(text: str) -> str:
    """The text with tokens, and the passwords of addresses, replaced by ***."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
