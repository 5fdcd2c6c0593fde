"""How requests reach the service: its address, and the proxy that the environment names for it.

Requests to this machine never go through a proxy. httpx would choose the proxy by itself, but could not say which one
an error comes from.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from admeta.client.errors import ClientError

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, kw_only=True)
class Route:
    """The way to a service. As text: the address, and the proxy where there is one.

    Attributes:
        url: the service's address, without a slash at its end.
        proxy: the proxy's address; None: a direct connection.
        variable: the environment variable that names the proxy.
        host: the service's host, where the address has one.
    """

    url: str
    host: str = ""
    proxy: str | None = None
    variable: str = ""

    def __str__(self) -> str:
        return self.url if self.proxy is None else f"{self.url} through the proxy {self.proxy} ({self.variable})"

    @property
    def advice(self) -> str:
        """How to connect without the proxy; empty where there is none."""
        return "" if self.proxy is None else f" To connect without the proxy, set NO_PROXY={self.host}."

    @property
    def is_encrypted(self) -> bool:
        """Whether the service's certificate is checked."""
        return self.url.lower().startswith("https:")

    def unusable(self, error: Exception) -> ClientError:
        """The error for a connection that cannot even be prepared."""
        reason = str(error) or type(error).__name__
        if isinstance(error, OSError):
            detail = f"the certificates to check {self.url} with cannot be read: {reason}."
            hint = "Let SSL_CERT_FILE name a file with certificates in PEM form, or unset it."
        else:
            detail = f"the proxy {self.proxy} ({self.variable}) cannot be used: {reason}."
            hint = f"Correct {self.variable}.{self.advice}"
        return ClientError(detail, hint=hint, status=None, error="unreachable")


def find_route(url: str | None) -> Route:
    """The way to the service at `url`; None: ADMETA_URL, else this machine's."""
    url = (url or os.environ.get("ADMETA_URL") or DEFAULT_URL).rstrip("/")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:  # httpx will say what is wrong with it
        return Route(url=url)
    if _is_this_machine(host) or proxy_bypass(host):
        return Route(url=url)
    proxies = getproxies()
    kind = parts.scheme if parts.scheme in proxies else "all"
    if not proxies.get(kind):
        return Route(url=url)
    proxy = proxies[kind] if "://" in proxies[kind] else f"http://{proxies[kind]}"
    names = (f"{kind}_proxy", f"{kind}_proxy".upper())
    variable = next((name for name in names if os.environ.get(name)), "the system's settings")
    return Route(url=url, host=host, proxy=proxy, variable=variable)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
