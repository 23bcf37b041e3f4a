# PYTHON_ARGCOMPLETE_OK
"""The console script, in a module whose name no folder of a user is likely to have."""

import os
import site
import sys


def prefer_installed() -> None:
    """Keep a user's files from replacing installed modules, here and in child processes.

    Users have folders named ``studies`` and ``hylorada`` too. So the working folder and the folder
    of the script are removed from the search path, and the folders of ``PYTHONPATH`` move behind
    all installed ones: they can add modules but replace none.
    """
    ours = os.path.dirname(os.path.abspath(__file__))
    installed = {ours, *map(os.path.abspath, site.getsitepackages())}
    folders = [os.path.abspath(folder) for folder in sys.path]
    script = os.path.dirname(os.path.realpath(sys.argv[0]))
    started_from = {os.path.realpath("."), script} - installed
    # such a first folder was added by Python itself, not by PYTHONPATH
    if not sys.flags.safe_path and folders[0] in started_from:
        del folders[0]
    named = os.environ.get("PYTHONPATH", "")
    added = [os.path.abspath(folder) for folder in named.split(os.pathsep) if folder]
    last = [
        folder for folder in dict.fromkeys(added) if folder in folders and folder not in installed
    ]
    first = [folder for folder in folders if folder not in last]
    # `ours` is added because Python looks for an editable install after the whole search path
    sys.path[:] = dict.fromkeys([*first, ours, *last])
    os.environ["PYTHONSAFEPATH"] = "1"
    if named:
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)


def command() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    prefer_installed()
    from studies.cli import main

    return main.command()


if __name__ == "__main__":
    sys.exit(command())
