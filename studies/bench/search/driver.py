"""What both drivers of a timed search do around it: read the task, work in a folder of their own, write the result."""

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
    """Run ``search`` on the task whose file is the first argument of this process."""
    on_end(interrupt)
    prepare_environment()
    place = short_folder()
    try:
        make_private(place)
        task = json.loads(Path(sys.argv[1]).read_text())
        Path(task["result"]).write_text(json.dumps(search(task, place)))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    gc.freeze()  # as `hylorada` does at its end
