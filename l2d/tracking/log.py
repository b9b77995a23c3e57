"""The handler that writes train.log; conf/hydra/job_logging/file.yaml names it."""

import logging
import os
from io import TextIOWrapper
from pathlib import Path

from l2d.atomic import open_to_append


class RunLog(logging.FileHandler):
    """Appends to a file, but not through a link, and not to a FIFO, which would block; RunFolder refuses a run that has one."""

    def _open(self) -> TextIOWrapper:
        try:
            return open_to_append(Path(self.baseFilename))
        except OSError:
            return open(os.devnull, "a")
