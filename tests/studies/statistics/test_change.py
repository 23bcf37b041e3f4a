"""How changes in percent are written: a tiny interval keeps a digit of its width."""

import pytest

from studies.statistics.change import effect_text, ends_text, interval_text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((-1.256, -1.7, -0.83), "-1.26 % [-1.70, -0.83]"),
        ((0.00031, -0.0002, 0.0008), "+0.0003 % [-0.0002, +0.0008]"),
        ((-0.0, -0.004, 0.004), "+0.000 % [-0.004, +0.004]"),
        ((5.12711, 5.12710, 5.12712), "+5.13 % [+5.13, +5.13]"),  # three digits are enough
        ((0.0, 0.0, 0.0), "+0.00 % [+0.00, +0.00]"),  # identical arms
        ((1e-9, -1e-9, 2e-9), "+0.00000 % [+0.00000, +0.00000]"),  # below what anyone asks for
        ((2.0, float("-inf"), float("inf")), "+2.00 % [-inf, +inf]"),
    ],
)
def test_interval_keeps_a_digit_of_its_width(
    numbers: tuple[float, float, float], text: str
) -> None:
    assert interval_text(*numbers, " %") == text


def test_ends_have_the_decimals_of_the_whole_interval() -> None:
    assert ends_text(0.1, 0.1024) == "[+0.100, +0.102]"


def test_effects_keep_a_digit() -> None:
    assert [effect_text(x) for x in (0.64, 0.0021, 0.0)] == ["0.64", "0.002", "0.00"]
