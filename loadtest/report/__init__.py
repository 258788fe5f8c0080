"""What was found, for people: a table on a terminal, a page, pictures. Only ``table`` is light to import."""

from importlib import util


class ReportError(Exception):
    """A report cannot be made. The message is one plain sentence for the user."""


def require_matplotlib() -> None:
    """Raises ReportError where no picture could be drawn; for before a run, not after it."""
    if util.find_spec("matplotlib") is None:
        raise ReportError("Pictures need matplotlib: pip install 'tidegate[report]'.")
