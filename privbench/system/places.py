"""Where this machine keeps what can be made or downloaded again: outside the working directory, the results and the user's folders.

`PRIVBENCH_CACHE` names another place; the default is the user's cache folder, e.g. ~/.cache/privbench on Linux.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache() -> Path:
    """The folder of all of it; made by the first who writes into it."""
    named = os.environ.get("PRIVBENCH_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_path("privbench"))


def data() -> Path:
    """Where data sets are downloaded to, and looked for unless the user names a folder."""
    return cache() / "data"


def images() -> Path:
    """Where the decoded images of users' own folders are kept."""
    return cache() / "images"
