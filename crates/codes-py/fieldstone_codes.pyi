"""Erasure codes: Reed-Solomon as ISA-L and Jerasure make it, Zigzag, Clay and copies.

A code has k data shards and m parity shards of one length, numbered 0 to k - 1 and k to k + m - 1.
Any k of them give back all others. The names of codes are:

    rs:K+M                        ISA-L's Cauchy matrix             Ceph: isa, cauchy
    rs-van:K+M                    ISA-L's Vandermonde matrix        Ceph: isa, reed_sol_van
    jerasure-van:K+M[,w=W]        Jerasure's reed_sol_van           Ceph: jerasure
    jerasure-r6:K+2[,w=W]         Jerasure's reed_sol_r6_op         Ceph: jerasure
    cauchy-orig:K+M[,w=W][,ps=P]  Jerasure's cauchy_orig            Ceph: jerasure
    cauchy-good:K+M[,w=W][,ps=P]  Jerasure's cauchy_good            Ceph: jerasure
    zigzag:K+M[,n=N]              repairs read less of data shards
    clay:K+M[,d=D][,mds=S]        repairs read less of every shard  Ceph: clay
    copies:N                      N equal shards

Shards are any contiguous buffers of bytes: bytes, bytearray, memoryview, mmap, NumPy arrays of
uint8. They are used where they are, without copies, and other threads run meanwhile: none of them
may write these buffers during the call. What is written must not overlap anything else in the call.
Lists of buffers may be any iterable, a two-dimensional array included.

What does not fit raises CodeError, before anything is written; what is no buffer of bytes raises
TypeError.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, final, overload

from numpy import uint8
from numpy.typing import NDArray
from typing_extensions import Buffer

# NumPy says that its arrays are buffers only to type checkers for Python 3.12 and later.
_Bytes: TypeAlias = Buffer | NDArray[uint8]

__all__ = ["Code", "CodeError", "Read", "RepairPlan", "__version__"]
__version__: str

class CodeError(ValueError):
    """What was asked for does not fit the code: its name, shards, lengths or buffers."""

@final
class Code:
    """An erasure code, made from its name.

    Make it once and share it, also between threads: it keeps the plans that it made last.
    """

    def __new__(cls, profile: str) -> Code: ...
    @property
    def profile(self) -> str:
        """The name of the code, as short as it can be written."""
    @property
    def k(self) -> int:
        """Data shards."""
    @property
    def m(self) -> int:
        """Parity shards: any m losses can be repaired."""
    @property
    def elements(self) -> int:
        """Elements per shard, the unit in which plans read."""
    @property
    def granule_bytes(self) -> int:
        """Lengths of shards are multiples of this."""
    def chunk_bytes(self, object_bytes: int) -> int:
        """The length of each shard of an object, by the rule of Ceph's plugin for the code.

        Data shard i is bytes i * chunk to (i + 1) * chunk of the object, filled up with zeros.
        """
    @overload
    def encode(self, data: Iterable[_Bytes], parity: None = None) -> NDArray[uint8]:
        """Computes the parities of the k data shards: the m rows of a new array."""
    @overload
    def encode(self, data: Iterable[_Bytes], parity: Iterable[_Bytes]) -> None:
        """Computes the parities of the k data shards, into m writable buffers."""
    @overload
    def decode(
        self, shards: Mapping[int, _Bytes] | Sequence[_Bytes | None], out: None = None
    ) -> dict[int, NDArray[uint8]]:
        """Makes all missing shards of any k others, as new arrays.

        `shards` is a mapping from numbers to shards, or a list of all k + m with None for missing
        ones.
        """
    @overload
    def decode(
        self,
        shards: Mapping[int, _Bytes] | Sequence[_Bytes | None],
        out: Mapping[int, _Bytes] | Sequence[_Bytes | None],
    ) -> None:
        """Makes those missing shards that `out` has writable buffers for."""
    def repair_plan(self, lost: Iterable[int], available: Iterable[int]) -> RepairPlan:
        """Plans the repair of `lost`, reading as little as the code can of some of `available`.

        Where that costs the same, the first ones of `available` are read.
        """
    def update(
        self, shard: int, offset: int, old: _Bytes, new: _Bytes, parity: Iterable[_Bytes]
    ) -> None:
        """Brings the m parities up to date with a write, without the other data shards.

        The bytes of data shard `shard` at `offset` were `old` and are `new`. Codes over words of 16
        and 32 bits take whole words only.
        """
    def verify(self, shards: Iterable[_Bytes]) -> bool:
        """Whether the parities of all k + m shards are those of the data."""
    def locate(self, shards: Iterable[_Bytes]) -> list[int]:
        """The shards that may be wrong, of all k + m.

        None of them in a consistent stripe; one where a single wrong shard explains everything,
        which takes two parities or more; all where nothing tells. Several wrong shards may look
        like one.
        """
    def __getnewargs__(self) -> tuple[str]: ...

@final
class Read:
    """What a plan reads of one shard."""

    @property
    def shard(self) -> int:
        """The shard."""
    def slices(self, shard_bytes: int) -> list[slice[int, int, int]]:
        """The byte ranges to read of a shard of `shard_bytes` bytes, in order."""
    def len_bytes(self, shard_bytes: int) -> int:
        """Bytes in all of those ranges."""

@final
class RepairPlan:
    """How to make lost shards of others, reading as little as the code can."""

    @property
    def lost(self) -> list[int]:
        """The lost shards, in the order in which they were named."""
    @property
    def reads(self) -> list[Read]:
        """What to read, in the order in which `execute` takes it."""
    def read_bytes(self, shard_bytes: int) -> int:
        """Bytes to read in all, of shards of `shard_bytes` bytes."""
    @overload
    def execute(self, inputs: Iterable[_Bytes], out: None = None) -> NDArray[uint8]:
        """Makes the lost shards of what was read: the rows of a new array.

        `inputs[i]` is the content of `reads[i]`, its slices one after the other.
        """
    @overload
    def execute(self, inputs: Iterable[_Bytes], out: Iterable[_Bytes]) -> None:
        """Makes the lost shards of what was read, in writable buffers."""
