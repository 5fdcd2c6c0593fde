"""The errors of this package.

SearchError
├── StudyNotFoundError
├── StudyConflictError
├── TooFewTrialsError
└── LeaseLostError
"""

import difflib


class SearchError(Exception):
    """Base of every error raised by `search`."""


class StudyNotFoundError(SearchError):
    """No study has this id or name."""


class StudyConflictError(SearchError):
    """The study's state or definition does not allow what was asked."""


class TooFewTrialsError(SearchError):
    """There are not enough complete trials with different results to tell parameters apart."""


class LeaseLostError(SearchError):
    """Another driver has taken the study over; this one must stop writing."""


def nearest_hint(name: str, known: tuple[str, ...]) -> str:
    """The next step for an unknown name: the nearest known one, and all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    known_names = "known: " + ", ".join(sorted(known))
    return f"did you mean '{near[0]}'? {known_names}" if near else known_names
