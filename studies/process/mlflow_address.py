"""The address of MLflow: which one to use, its kind, and how to print it without its password."""

import os
import re
import sys

DATABASES = ("postgresql", "mysql", "mssql")  # databases that MLflow opens, beside SQLite
_VARIABLE = "MLFLOW_TRACKING_URI"
_ADDRESS = r"(?<!sqlite)(?<!file)://"  # of a service that may need a login


def heed_environment(option: str | None) -> str | None:
    """Return the address from the option or else from MLflow's own variable, and print a note."""
    variable = os.environ.get(_VARIABLE) or None
    if variable is None or variable == option:
        return option
    if option is None:
        print(f"hylorada: note: MLflow at {shown(variable)}, from {_VARIABLE}", file=sys.stderr)
        return variable
    ignored = f"{_VARIABLE} ({shown(variable)}) is ignored"
    print(
        f"hylorada: note: MLflow at {shown(option)}, from --tracking-uri; {ignored}",
        file=sys.stderr,
    )
    return option


def shown(address: str) -> str:
    """Return an address with ``***`` for its login and its query, which may hold passwords."""
    without_login = re.sub(f"{_ADDRESS}.*@", "://***@", address, flags=re.DOTALL)
    return re.sub(rf"({_ADDRESS}[^?]*\?).*", r"\1***", without_login, flags=re.DOTALL)


def redact(text: str) -> str:
    """Return a text, such as a library's message, with each address in it masked by `shown`."""
    return re.sub(r"\S+://\S+", lambda match: shown(match[0]), text)


def is_server(uri: str) -> bool:
    """Return whether MLflow is reached over HTTP."""
    return uri.startswith(("http://", "https://"))


def is_database(uri: str) -> bool:
    """Return whether MLflow's client opens a database itself, and so also writes the artifacts."""
    return uri.startswith(("sqlite:", "sqlite+pysqlite:", *DATABASES))
