"""The states and choices that the whole product shares, under the name that the server uses.

They are defined in `admeta.client.states`, so that the client needs no other package of the project.
"""

from admeta.client.states import *  # noqa: F403
