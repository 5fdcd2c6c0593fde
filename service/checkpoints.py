"""The folder that a study's runs keep their checkpoints in, when it is no longer needed."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

log = logging.getLogger(__name__)


def remove_checkpoints(storage: str, study_id: str) -> None:
    """Remove the study's folder under the storage; one that is not there is fine, one that stays is logged.

    Args:
        storage: the folder of all studies' checkpoints, `service.settings.Settings.storage`.
        study_id: as the database gave it; no name from a request.
    """
    folder = Path(storage) / study_id
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("study %s is deleted, but its checkpoints in %s are not: %s; remove them", study_id, folder, error)
