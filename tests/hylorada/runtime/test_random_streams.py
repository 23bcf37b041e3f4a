"""Random streams have fixed values and are independent of each other."""

import hashlib

import torch

from hylorada.runtime.random_streams import derive_seed, stream


def test_seed_is_the_first_63_bits_of_the_hash() -> None:
    digest = hashlib.sha256(b"int:3\x1fstr:dropout").hexdigest()
    assert derive_seed(3, "dropout") == int(digest[:16], 16) // 2


def test_seed_depends_on_every_part_its_type_and_place() -> None:
    parts: list[tuple[int | str, ...]] = [
        (1, 2),
        (2, 1),
        (1, "2"),
        ("1", "2"),
        (12,),
        ("12",),
        (1, 2, 0),
        (1,),
        (),
    ]
    assert len({derive_seed(*p) for p in parts}) == len(parts)
    assert all(0 <= derive_seed(*p) < 2**63 for p in parts)


def test_streams_leave_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, second = (torch.rand(4, generator=stream(0, name)) for name in ("a", "b"))
    assert torch.equal(first, torch.rand(4, generator=stream(0, "a")))
    assert not torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), before)
