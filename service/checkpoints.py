"""The folder that a study's runs keep their checkpoints in, when it is no longer needed."""

from __future__ import annotations

import logging

from tasks.engine.folders import inside, open_folder

log = logging.getLogger(__name__)


def remove_checkpoints(storage: str, study_id: str) -> None:
    """Remove the study's folder under the storage; one that is not there is fine, one that stays is logged.

    Args:
        storage: the folder or address of all studies' checkpoints, `service.settings.Settings.storage`.
        study_id: as the database gave it; no name from a request.
    """
    folder = inside(storage, study_id)
    try:
        open_folder(folder).remove_all()
    except OSError as error:
        log.warning("study %s is deleted, but its checkpoints in %s are not: %s; remove them", study_id, folder, error)
