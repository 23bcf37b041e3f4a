"""Where the built-in base lies, for programs that load it by themselves."""

from pathlib import Path


def builtin_base() -> Path:
    """Return the folder of the built-in base ``tiny`` and its tokenizer.

    Whatever loads a base from a folder loads this one, such as
    ``AutoModelForCausalLM.from_pretrained(builtin_base(), dtype="float32")``. Its weights are
    stored as fp16, in which transformers would compute otherwise; :func:`load_base` takes fp32.

    Example:
        >>> builtin_base().joinpath("config.json").is_file()
        True
    """
    return Path(__file__).parents[1] / "tiny"
