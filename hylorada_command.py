"""The console script, under a name of its own: users have folders named ``studies`` and ``hylorada`` too."""

import os
import site
import sys


def prefer_installed() -> None:
    """Let nothing of the user's stand in for an installed module, here and in processes started from here.

    The working folder and the script's folder leave the search path. The folders of ``PYTHONPATH`` stay, after all
    that is installed: they add modules and replace none.
    """
    ours = os.path.dirname(os.path.abspath(__file__))
    installed = {ours, *map(os.path.abspath, site.getsitepackages())}
    folders = [os.path.abspath(folder) for folder in sys.path]
    started_from = {
        os.path.realpath("."),
        os.path.dirname(os.path.realpath(sys.argv[0])),
    } - installed
    if (
        not sys.flags.safe_path and folders[0] in started_from
    ):  # Python has put it there, not PYTHONPATH
        del folders[0]
    named = os.environ.get("PYTHONPATH", "")
    added = [os.path.abspath(folder) for folder in named.split(os.pathsep) if folder]
    last = [
        folder for folder in dict.fromkeys(added) if folder in folders and folder not in installed
    ]
    first = [folder for folder in folders if folder not in last]
    sys.path[:] = dict.fromkeys(
        [*first, ours, *last]
    )  # ours: an editable install is found after the search path
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
