"""What the errors of MLflow's client mean: whether a call may succeed later, and why it failed."""

import re

import requests  # MLflow's own client library
from mlflow.exceptions import MlflowException

from studies.process.mlflow_address import redact

_TEMPORARY = {  # MLflow's codes; its client uses the first if a server can't be reached
    "INTERNAL_ERROR",
    "TEMPORARILY_UNAVAILABLE",
    "REQUEST_LIMIT_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "ABORTED",
}
_CAUSES = (  # in the text of a failed request, the most informative first
    r"too many \d+ error responses",
    r"certificate verify failed[^(\n]*",
    r"(?<=Caused by )\w+",
)


def is_temporary(error: Exception) -> bool:
    """Return whether a call may succeed later.

    That is so if the server is away or slow, the database locked, or the disk full.
    """
    if isinstance(error, MlflowException):
        return error.error_code in _TEMPORARY
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code >= 500 or error.response.status_code in (408, 429)
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


def reason_of(error: BaseException) -> str:
    """Return why a call failed, in few words: the wrapped cause, or the server's own message."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, requests.RequestException):
        matches = (re.search(pattern, str(cause)) for pattern in _CAUSES)
        return next((match[0].strip() for match in matches if match), type(cause).__name__)
    if answer := re.search(r"(?:code (\d+) .*?)?Response body: '(.*)'", str(error), re.DOTALL):
        return f"{answer[1] or 'no JSON'}: {_one_line(answer[2]) or 'empty response'}"
    text = str(getattr(cause, "orig", error)).strip().splitlines() or [""]
    code = (
        f"{error.error_code}: "
        if isinstance(error, MlflowException) and not hasattr(cause, "orig")
        else ""
    )
    return _one_line(code + text[0].removeprefix(code)) if text[0] else type(error).__name__


def _one_line(text: str) -> str:
    """Return a server's message as one printable line without markup and passwords."""
    words = re.sub(r"(?s)<(style|script).*?</\1>|<[^>]*>", " ", text)
    printable = "".join(letter if letter.isprintable() else " " for letter in words)
    return redact(" ".join(printable.split()))[:300]
