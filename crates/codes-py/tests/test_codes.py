"""What the codes compute, seen from Python: any loss, any plan, any write, known parities."""

import pickle
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import numpy
import pytest
from numpy.typing import NDArray

import fieldstone_codes
from fieldstone_codes import Code, CodeError

Bytes = NDArray[numpy.uint8]

# Every kind of code; updates of those over words take whole words.
CODES = [
    ("rs:4+2", 1),
    ("rs:5+1", 1),
    ("rs-van:4+3", 1),
    ("jerasure-van:4+2", 1),
    ("jerasure-van:3+2,w=16", 2),
    ("jerasure-r6:4+2,w=32", 4),
    ("cauchy-good:4+2,ps=8", 1),
    ("zigzag:4+2", 1),
    ("zigzag:4+3", 1),
    ("clay:4+2", 1),
    ("copies:3", 1),
]
NAMES = [name for name, _ in CODES]


def stripe(code: Code, granules: int, seed: int = 1) -> Bytes:
    """A stripe of random data with its parities: one row for each shard."""
    rows = numpy.random.default_rng(seed)
    data = rows.integers(0, 256, (code.k, granules * code.granule_bytes), numpy.uint8)
    return numpy.concatenate([data, code.encode(data)])


def losses(code: Code) -> Iterator[tuple[int, ...]]:
    """All losses that can be repaired."""
    for count in range(1, code.m + 1):
        yield from combinations(range(code.k + code.m), count)


def test_a_code_says_what_it_is() -> None:
    code = Code("clay:4+2,d=5")
    assert (code.profile, code.k, code.m) == ("clay:4+2", 4, 2)
    assert (code.elements, code.granule_bytes) == (8, 8)
    assert repr(code) == "Code('clay:4+2')"
    assert Code("cauchy-good:4+2,ps=32").granule_bytes == 256
    assert pickle.loads(pickle.dumps(code)).profile == "clay:4+2"
    # What Ceph 16.2.15 answers to `ceph-erasure-code-tool calc-chunk-size`.
    for name, object_bytes, chunk_bytes in [
        ("jerasure-van:4+2", 10_000, 2528),
        ("cauchy-good:4+2,ps=32", 10_000, 3072),
        ("rs:3+2", 10_000, 3360),
        ("clay:8+4", 4 << 20, 524_288),
    ]:
        assert Code(name).chunk_bytes(object_bytes) == chunk_bytes
    with pytest.raises(CodeError, match=r"2\^64"):
        Code("rs:1+1").chunk_bytes(2**64 - 1)


def test_the_version_is_that_of_the_workspace() -> None:
    manifest = (Path(__file__).parents[3] / "Cargo.toml").read_text()
    found = re.search(r'^version = "(.*)"', manifest, re.MULTILINE)
    assert found is not None and fieldstone_codes.__version__ == found[1]


def test_unknown_codes_are_refused() -> None:
    assert issubclass(CodeError, ValueError)
    with pytest.raises(CodeError, match="there are rs:K"):
        Code("raid:5")
    with pytest.raises(CodeError, match="at most 255"):
        Code("rs:300+2")
    with pytest.raises(CodeError, match="16777216 are the most"):
        Code("clay:60+60")
    with pytest.raises(TypeError):
        Code(4)  # type: ignore[arg-type]


def test_parities_are_jerasures() -> None:
    """Its reed_sol_van matrix for 4 + 2 is 1 1 1 1 over 1 70 143 200."""
    code = Code("jerasure-van:4+2")
    assert (code.encode(numpy.eye(4, dtype=numpy.uint8)) == [[1, 1, 1, 1], [1, 70, 143, 200]]).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("granules", [0, 1, 90])
def test_every_loss_is_decoded(name: str, granules: int) -> None:
    code = Code(name)
    shards = stripe(code, granules)
    for lost in losses(code):
        there = [row if i not in lost else None for i, row in enumerate(shards)]
        made = code.decode(there)
        assert sorted(made) == list(lost)
        assert all((made[shard] == shards[shard]).all() for shard in lost)
        # The same from a mapping, with k shards only, into buffers for one of those lost.
        some = dict([(i, row) for i, row in enumerate(shards) if i not in lost][: code.k])
        out = numpy.full_like(shards[0], 0xEE)
        code.decode(some, out={lost[-1]: out})
        assert (out == shards[lost[-1]]).all()
    assert code.decode(list(shards)) == {}


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_is_repaired_from_what_the_plan_reads(name: str) -> None:
    code = Code(name)
    shards = stripe(code, 40)
    shard_bytes = shards.shape[1]
    for lost in losses(code):
        plan = code.repair_plan(lost, [i for i in range(len(shards)) if i not in lost])
        assert plan.lost == list(lost)
        inputs = [
            numpy.concatenate([shards[read.shard][part] for part in read.slices(shard_bytes)])
            for read in plan.reads
        ]
        assert [len(part) for part in inputs] == [r.len_bytes(shard_bytes) for r in plan.reads]
        assert plan.read_bytes(shard_bytes) == sum(map(len, inputs))
        assert (plan.execute(inputs) == shards[list(lost)]).all()
        out = numpy.full((len(lost), shard_bytes), 0xEE, numpy.uint8)
        plan.execute(inputs, out)
        assert (out == shards[list(lost)]).all()


def test_regenerating_codes_read_less() -> None:
    """Half of each of five survivors, where Reed-Solomon reads four whole shards."""
    for name, shard, shards_read in [
        ("zigzag:4+2", 1, 2.5),
        ("zigzag:4+2", 5, 4),
        ("clay:4+2", 1, 2.5),
        ("clay:4+2", 5, 2.5),
        ("rs:4+2", 1, 4),
    ]:
        plan = Code(name).repair_plan([shard], [i for i in range(6) if i != shard])
        assert plan.read_bytes(800) == shards_read * 800
    plan = Code("zigzag:4+2").repair_plan([2], {0, 1, 3, 4, 5})
    assert [read.shard for read in plan.reads] == [0, 1, 3, 4, 5]
    assert plan.reads[0].slices(800) == [slice(0, 200, 1), slice(400, 600, 1)]
    assert "zigzag:4+2" in repr(plan) and repr(plan.reads[0]) == "<Read: 4 of 8 elements of shard 0>"


@pytest.mark.parametrize(("name", "unit"), CODES)
def test_parities_follow_any_write(name: str, unit: int) -> None:
    code = Code(name)
    shards = stripe(code, 30)
    numbers = random.Random(7)
    for _ in range(30):
        start = numbers.randrange(0, shards.shape[1] + 1, unit)
        end = numbers.randrange(start, shards.shape[1] + 1, unit)
        shard = numbers.randrange(code.k)
        new = numbers.randbytes(end - start)
        code.update(shard, start, shards[shard, start:end].copy(), new, shards[code.k :])
        shards[shard, start:end] = numpy.frombuffer(new, numpy.uint8)
        assert code.verify(shards)
        assert (code.encode(shards[: code.k]) == shards[code.k :]).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_wrong_shard_is_located(name: str) -> None:
    code = Code(name)
    shards = stripe(code, 20)
    everything = list(range(code.k + code.m))
    assert code.verify(shards) and code.locate(shards) == []
    for wrong in everything:
        at = 7 * wrong % shards.shape[1]
        shards[wrong, at] ^= 0x10
        assert not code.verify(shards)
        assert code.locate(shards) == ([wrong] if code.m >= 2 else everything)
        shards[wrong, at] ^= 0x10
    # With three parities two wrong bytes of a word cannot be taken for one.
    if code.m == 3:
        shards[0, 0] ^= 1
        shards[1, 0] ^= 1
        assert code.locate(shards) == everything


def test_threads_share_a_code() -> None:
    code = Code("zigzag:8+4,n=4")

    def work(seed: int) -> bool:
        shards = stripe(code, 64, seed)
        numbers = random.Random(seed)
        for _ in range(50):
            lost = numbers.sample(range(12), 4)
            made = code.decode({i: row for i, row in enumerate(shards) if i not in lost})
            if not all((made[i] == shards[i]).all() for i in lost):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize("readme", ["README.md", "crates/codes-py/README.md"])
def test_the_readme_does_what_it_says(readme: str) -> None:
    text = (Path(__file__).parents[3] / readme).read_text()
    programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(programs) == 1
    exec(compile(programs[0], readme, "exec"), {})
