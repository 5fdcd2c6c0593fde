"""The answers of REST (`admeta.client.models`) under the name that the server uses."""

from admeta.client.models import *  # noqa: F403
