"""The command line with its imports noted as phases. Runs as a script."""

import sys

from studies.bench.start.imports import note_imports
from studies.bench.start.timeline import COMMAND
from studies.process.phases import phase

if __name__ == "__main__":
    note_imports()
    with phase(COMMAND):
        from hylorada_command import command

        code = command()
    sys.exit(code)
