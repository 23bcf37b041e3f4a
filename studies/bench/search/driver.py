"""The frame of both drivers of a timed search: read a task, make a workspace, write the result."""

import gc
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studies.process.environment import make_private, prepare_environment, short_folder
from studies.process.signals import interrupt, on_end


def serve(search: Callable[[dict[str, Any], Path], list[float]]) -> None:
    """Run ``search`` on the task in the file named by this process's first argument."""
    on_end(interrupt)
    prepare_environment()
    place = short_folder()
    try:
        make_private(place)
        task = json.loads(Path(sys.argv[1]).read_text())
        Path(task["result"]).write_text(json.dumps(search(task, place)))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    gc.freeze()  # as at the end of `hylorada`
