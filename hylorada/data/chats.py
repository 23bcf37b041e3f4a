"""Turn chats, rows of messages, into text by the chat template of a tokenizer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hylorada.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FORMS = (("role", "content"), ("from", "value"))
_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names of roles: the usual ones


def holds_chats(values: Iterable[Any]) -> bool:
    """Return whether every value that is not null is a list of messages."""
    present = [value for value in values if value is not None]
    return bool(present) and all(map(_is_chat, present))


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(m, dict) and _form(m) is not None for m in value
    )


def _form(message: Mapping[str, Any]) -> tuple[str, str] | None:
    return next((form for form in _FORMS if all(key in message for key in form)), None)


def render_chats(
    chats: Sequence[Any], tokenizer: "PreTrainedTokenizerBase | None", where: str
) -> list[str]:
    """Render each chat with the tokenizer's chat template.

    Args:
        chats: lists of messages with `role` and `content`, or with `from` and `value`.
        tokenizer: the base's tokenizer.
        where: data and column, for error messages.

    Raises:
        InputError: there is no tokenizer, it has no chat template, or the template rejects a chat.
    """
    if tokenizer is None:
        raise InputError(
            f"{where} holds chats, which only a tokenizer's chat template turns into text; pass "
            "the tokenizer of the base, or name a column of text (--text-column)"
        )
    if not tokenizer.chat_template:
        raise InputError(
            f"{where} holds chats, and the tokenizer of the base has no chat template; use a base "
            "whose tokenizer has one, or name a column of text (--text-column)"
        )
    return [
        _render(chat, tokenizer, f"{where}, chat {number}") for number, chat in enumerate(chats, 1)
    ]


def _render(chat: list[dict[str, Any]], tokenizer: "PreTrainedTokenizerBase", where: str) -> str:
    try:
        return str(tokenizer.apply_chat_template([_message(m) for m in chat], tokenize=False))
    except Exception as error:  # a template is a program and may raise anything
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise InputError(f"{where}: the chat template rejects it: {reason[0]}") from error


def _message(message: dict[str, Any]) -> dict[str, Any]:
    # Where messages differ in their keys, a table fills the missing ones with nulls.
    kept = {key: value for key, value in message.items() if value is not None}
    if _form(message) == _FORMS[0]:
        return {"content": "", **kept}
    return {"role": _ROLES.get(message["from"], message["from"]), "content": message["value"] or ""}
