"""Lanes: every seat trains as in one pack, weights are shared, and no idle threads remain."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from designs import ARCHITECTURES, DESIGNS
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    Blocks,
    HyLoRADAConfig,
    Lanes,
    Pack,
    Seat,
    TrainingConfig,
    evaluate,
    read_step,
)
from hylorada.training.steps import train_step

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
Ids = npt.NDArray[np.int32]
STEPS = 4


def _seats(base: PreTrainedModel, make_config: MakeConfig, ids: Ids) -> dict[str, Seat]:
    training = TrainingConfig(max_steps=STEPS, batch_size=2, learning_rate=1e-2)
    order = BatchOrder(len(ids), 2, seed=5)
    configs = {
        name: make_config(**{"lora_dropout": 0.2, **changes}) for name, changes in DESIGNS.items()
    }
    return {
        name: Seat(Adapter(base, c, seed=k), training, order)
        for k, (name, c) in enumerate(configs.items())
    }


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_seats_of_all_lanes_train_as_in_one_pack(
    family: str, make_base: MakeBase, make_config: MakeConfig, token_blocks: Ids, blocks: Blocks
) -> None:
    base = make_base(family, torch.float64)
    pack, seats = Pack(base), _seats(base, make_config, token_blocks)
    expected = [train_step(pack, seats, token_blocks) for _ in range(STEPS)]
    figures = [e.block_nll for e in evaluate(pack, [s.adapter for s in seats.values()], blocks)]
    pack.close()
    lanes, seats = Lanes(base, cores=3), _seats(base, make_config, token_blocks)
    assert len(lanes.packs) == 3
    results: list[Any] = [read_step(lanes.start_step(seats, token_blocks)) for _ in range(STEPS)]
    for got, wanted in zip(results, expected, strict=True):
        assert list(got) == list(wanted)
        assert list(got.values()) == pytest.approx(list(wanted.values()), rel=0, abs=1e-10)
    evaluations = lanes.evaluate([s.adapter for s in seats.values()], blocks)
    for evaluation, nll in zip(evaluations, figures, strict=True):
        assert evaluation.block_nll == pytest.approx(nll, rel=0, abs=1e-8)


def test_base_alone_and_fewer_seats_than_lanes(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: Ids, blocks: Blocks
) -> None:
    base = make_base("llama", torch.float64)
    lanes = Lanes(base, cores=4)
    (alone,) = lanes.evaluate([], blocks)
    assert alone.nll == pytest.approx(evaluate(Pack(base), [], blocks)[0].nll, abs=1e-12)
    one = dict(list(_seats(base, make_config, token_blocks).items())[:1])
    assert len(read_step(lanes.start_step(one, token_blocks))) == 1


def test_weights_are_there_once(make_base: MakeBase) -> None:
    lanes = Lanes(make_base("gpt2"), cores=8)
    assert len(lanes.packs) == 4
    assert lanes.packs[0].base is lanes.base
    places = [
        [t.data_ptr() for t in (*p.base.parameters(), *p.base.buffers())] for p in lanes.packs
    ]
    assert all(place == places[0] for place in places)
    assert len({id(m) for p in lanes.packs for m in p.base.modules()}) == 4 * len(
        list(lanes.base.modules())
    )


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_error_of_one_lane_is_raised_when_all_have_ended(broken: int, make_base: MakeBase) -> None:
    lanes, ended = Lanes(make_base("llama"), cores=3), []
    others = threading.Event()

    def work(_: Pack, part: Sequence[int]) -> None:
        if part[0] == broken:
            others.set()
            raise ValueError(part[0])
        others.wait(10)
        ended.append(part[0])

    with pytest.raises(ValueError, match=str(broken)):
        lanes._share_out(work, [0, 1, 2])
    assert sorted(ended) == sorted({0, 1, 2} - {broken})


def test_limit_of_one_lane_is_that_of_all(make_base: MakeBase) -> None:
    lanes = Lanes(make_base("llama"), cores=2)
    assert lanes.max_seats is None
    lanes.packs[1].max_seats = 3
    assert lanes.max_seats == 3
    lanes.max_seats = None
    assert [p.max_seats for p in lanes.packs] == [None, None]


def test_teams_of_threads_never_outnumber_the_cores() -> None:
    """Threads never outnumber cores, with seats in one lane, two, four and one again.

    Otherwise they would sleep between operations.
    """
    program = """
        import os
        import torch
        from hylorada import Lanes, load_base

        torch.set_num_threads(1)  # the limit of the thread that loads
        lanes = Lanes(load_base("tiny"), cores=4)

        def work(pack, part):
            threads.append(torch.get_num_threads())
            torch.ones(1 << 20).mul(2)  # large enough for a team of threads

        counts = []
        for shares in ([4], [2, 2], [1, 1, 2], [1, 1, 1, 1], [4]):
            threads = []
            lanes._share_out(work, range(len(shares)))
            assert sorted(threads) == shares, threads
            counts.append(len(os.listdir("/proc/self/task")))
        assert counts[-1] == counts[0], counts
        assert max(counts) <= counts[0] + 1, counts  # the caller's team may outlast its last use
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_number_of_threads_stays_a_threads_own() -> None:
    program = """
        import torch
        from concurrent.futures import ThreadPoolExecutor
        from hylorada.runtime.devices import own_threads

        thread = ThreadPoolExecutor(1, initializer=own_threads, initargs=(1,))
        thread.submit(int).result()
        torch.set_num_threads(3)
        print(thread.submit(torch.get_num_threads).result(), torch.get_num_threads())
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout.strip()) == (0, "1 3"), run.stderr


def test_closing_gives_the_base_back(make_base: MakeBase) -> None:
    base = make_base("gpt2")
    kinds = [type(m) for m in base.modules()]
    lanes = Lanes(base, cores=2)
    assert [type(m) for m in base.modules()] != kinds
    lanes.close()
    assert [type(m) for m in base.modules()] == kinds
