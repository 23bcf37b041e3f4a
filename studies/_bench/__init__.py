"""What the pack is worth on this machine: plain loops, processes that share the device, and packs in one table."""

from ._options import BenchOptions, check
from ._result import Bench, Row
from ._run import run_bench
from ._table import print_bench

__all__ = ["Bench", "BenchOptions", "Row", "check", "print_bench", "run_bench"]
