"""What REST answers and takes: the models that the service, the client and the command line share.

Imports neither the server nor torch, ray or optuna, so that the client stays light. The request for a new study is
`search.definition.StudyDefinition`.
"""

# ruff: noqa: F403  (each module holds models alone)
from admeta.client.models.base import *
from admeta.client.models.comparison import *
from admeta.client.models.profiles import *
from admeta.client.models.server import *
from admeta.client.models.studies import *
