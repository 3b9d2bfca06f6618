"""Rebuild K and V of one layer from its stored inputs in one pass: product, bias, rotation and write to the slots."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.gpu import shared_memory as memory
from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, REGISTERS, CtaItems, Interpret, Ref, put, repeat
from pallas_kernels.partial_recompute import Norm
from pallas_kernels.rotary import Angles

ROWS = 64
"""Tokens of a compute warpgroup's tile, the rows of a wgmma."""
COMPUTE = 2
"""Compute warpgroups, which share the weights; one more loads."""
TILE_K = 64
"""Of the hidden size, in a stage: a row of 128 bytes."""
_MOST_STAGES = 4
_MAX_COLUMNS = 256
"""Of a wgmma."""
# mypy takes a method of jax without a body for an abstract one.
_SWIZZLED = (plgpu.TilingTransform((8, TILE_K)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]
_THREAD = "warpgroup"


def partial_recompute(
    cache: Float[Array, "N L 2 K B D"],
    layer: Int[Array, ""],
    x: Float[Array, "T E"],
    weight: Float[Array, "M O E"],
    bias: Float[Array, "M O"] | None,
    angles: Angles | None,
    slots: Int[Array, "T"],
    *,
    norm: Norm | None = None,
    k_norm: Norm | None = None,
    run: int = 1,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> Float[Array, "N L 2 K B D"]:
    """Return the cache with K and V of the tokens of ``x`` in ``layer``, written in place; see partial_recompute_ref.

    ``norm`` is XLA's, outside the kernel. To equal the model's, it must be rounded to x's dtype before the product. So
    inside the kernel it would be computed again for every tile. x, weight and cache are of one dtype of 16 bits; E is a
    multiple of 64, O - 2 * K * D and D multiples of 8, with angles D one of 16, and D at most 256. ``run`` divides B, T
    and 64. One bulk copy writes that many tokens, so a caller who rebuilds whole blocks should set it. The result is
    undefined if slots are negative or not distinct, or if the promise of ``run`` does not hold. Raises
    NotImplementedError for other shapes, for a ``k_norm``, and for angles of a part of a head. Raises ValueError for
    another ``run``.

    A tile is 128 tokens and some heads of K or of V, at most 256 columns. Reads x once per such group of heads
    and the weights once per 128 tokens, mostly from the L2 cache; 4 * T * E * K * D FLOPs.
    """
    if k_norm is not None:
        raise NotImplementedError("a norm of K between the projection and the rotation")
    if angles is not None and 2 * angles[0].shape[-1] != cache.shape[5]:
        raise NotImplementedError(f"rotary angles of {angles[0].shape[-1]} pairs for head_dim {cache.shape[5]}")
    if angles is not None and cache.shape[5] % 16:
        raise NotImplementedError(f"angles for head_dim {cache.shape[5]}: it must be a multiple of 16")
    shape = _Shape.of(cache, x, weight, run, num_ctas)
    pad = -len(slots) % (ROWS * COMPUTE)
    x = jnp.pad(x if norm is None else norm(x), ((0, pad), (0, 0)))
    slots = jnp.pad(slots, (0, pad), constant_values=shape.num_slots)
    alone = len(weight) == 1
    outputs = slice(-2 * shape.kv_heads * shape.head_dim, None)
    extra = [] if bias is None else [bias[0 if alone else layer, outputs].astype(jnp.float32)]
    extra += [] if angles is None else [jnp.pad(angle[:, 0], ((0, pad), (0, 0))) for angle in angles]

    def body(cache_ref: Ref, layer_ref: Ref, x_ref: Ref, weight_ref: Ref, slots_ref: Ref, *rest: Ref) -> None:
        *given, x_stages, weight_stages, out, full, free = rest
        bias_ref = None if bias is None else given.pop(0)
        items = CtaItems(jnp.int32(len(slots) // (ROWS * COMPUTE) * shape.groups), num_ctas)
        pipe = _Pipe(shape, items, x_stages, weight_stages, full, free, checked=interpret is not None)
        warpgroup = lax.axis_index(_THREAD)

        @pl.when(warpgroup == COMPUTE)
        def _() -> None:
            plgpu.set_max_registers(REGISTERS[0], action="decrease")
            pipe.load_all(x_ref, weight_ref.at[0 if alone else layer_ref[0]])

        @pl.when(warpgroup < COMPUTE)
        def _() -> None:
            plgpu.set_max_registers(REGISTERS[1], action="increase")
            write = _Epilogue(shape, warpgroup, cache_ref, layer_ref, slots_ref, bias_ref, given, out.at[warpgroup])

            def tile(i: Int[Array, ""]) -> None:
                write(items[i], pipe.product(i, warpgroup))

            repeat(0, items.mine, tile)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    ref = jax.new_ref(cache)
    plgpu.kernel(
        body,
        out_type=(),
        scratch_types=shape.scratch(),
        grid=(num_ctas,),
        grid_names=(CTA,),
        num_threads=COMPUTE + 1,
        thread_name=_THREAD,
        compiler_params=plgpu.CompilerParams(),
        interpret=interpret,
        kernel_name="partial_recompute",
    )(ref, layer.reshape(1), x, weight, slots, *extra)
    return jax.freeze(ref)


@dataclass(frozen=True)
class _Shape:
    """The static part of a call."""

    dtype: Any
    num_slots: int
    block_size: int
    kv_heads: int
    head_dim: int
    heads: int
    """Of a tile."""
    hidden: int
    first_row: int
    """Of K in the projection's outputs."""
    run: int

    @classmethod
    def of(cls, cache: jax.Array, x: jax.Array, weight: jax.Array, run: int, num_ctas: int) -> "_Shape":
        N, _, _, K, B, D = cache.shape
        first_row = weight.shape[1] - 2 * K * D
        if not (x.dtype == weight.dtype == cache.dtype and cache.dtype.itemsize == 2):
            raise NotImplementedError(f"x, weight and cache of dtypes {x.dtype}, {weight.dtype} and {cache.dtype}")
        if x.shape[1] % TILE_K or D % 8 or D > _MAX_COLUMNS or first_row % 8:
            raise NotImplementedError(f"hidden size {x.shape[1]}, head_dim {D}, {first_row} rows of queries")
        if B % run or ROWS % run or len(x) % run:
            raise ValueError(f"run {run} must divide block_size {B}, {ROWS}, and the {len(x)} tokens")
        heads = _heads_of_tile(-(-len(x) // (ROWS * COMPUTE)), K, D, num_ctas)
        shape = cls(cache.dtype, N * B, B, K, D, heads, x.shape[1], first_row, run)
        if not shape.swizzles_out and run * D * cache.dtype.itemsize % memory.COPY_ALIGNMENT:
            raise NotImplementedError(f"runs of {run} tokens of head_dim {D} begin at odd places of shared memory")
        return shape

    @property
    def columns(self) -> int:
        return self.heads * self.head_dim

    @property
    def groups(self) -> int:
        """Tiles of the same tokens: first of K, then of V."""
        return 2 * self.kv_heads // self.heads

    @property
    def steps(self) -> int:
        return self.hidden // TILE_K

    @property
    def stages(self) -> int:
        """As many as fit."""
        step = (ROWS * COMPUTE + self.columns) * TILE_K * self.dtype.itemsize
        out = COMPUTE * ROWS * self.head_dim * self.dtype.itemsize
        fit = (n for n in range(_MOST_STAGES, 0, -1) if memory.taken([n * step, out], barriers=2 * n) <= memory.HOPPER)
        return next(fit)

    @property
    def swizzles_out(self) -> bool:
        """Whether halves of heads and runs of tokens are whole tiles of the layout without bank conflicts."""
        return self.head_dim // 2 % TILE_K == 0 and self.run % 8 == 0

    def place(self, item: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """The first token and the group of heads of a tile."""
        groups = jnp.int32(self.groups)
        return pl.multiple_of(lax.div(item, groups) * (ROWS * COMPUTE), ROWS), lax.rem(item, groups)

    def scratch(self) -> list[Any]:
        return [
            plgpu.SMEM((self.stages, ROWS * COMPUTE, TILE_K), self.dtype, transforms=_SWIZZLED),
            plgpu.SMEM((self.stages, self.columns, TILE_K), self.dtype, transforms=_SWIZZLED),
            plgpu.SMEM((COMPUTE, ROWS, self.head_dim), self.dtype, transforms=_SWIZZLED if self.swizzles_out else ()),
            plgpu.Barrier(num_arrivals=2, num_barriers=self.stages),
            plgpu.Barrier(num_arrivals=COMPUTE, num_barriers=self.stages),
        ]


def _heads_of_tile(token_tiles: int, kv_heads: int, head_dim: int, num_ctas: int) -> int:
    """Heads that a tile computes: as many as let the CTA with the most tiles be done first; rather more than fewer."""

    def work(heads: int) -> int:
        tiles = token_tiles * 2 * kv_heads // heads
        return -(-tiles // num_ctas) * heads

    fit = [n for n in range(kv_heads, 0, -1) if kv_heads % n == 0 and n * head_dim <= _MAX_COLUMNS]
    return min(fit, key=work)


@dataclass(frozen=True)
class _Pipe:
    """x and weights on their way through the stages: filled by the loading warpgroup, freed by the others."""

    shape: _Shape
    items: CtaItems
    x: Ref
    weight: Ref
    full: Ref
    free: Ref
    checked: bool
    """Read what a wgmma reads, for the interpreter, whose race detector does not see a wgmma's reads."""

    def load_all(self, x_ref: Ref, weight_ref: Ref) -> None:
        """All that this CTA's tiles need, each stage as soon as it is free; returns when all have been used."""
        steps, stages = jnp.int32(self.shape.steps), self.shape.stages
        total = self.items.mine * steps

        def load(n: Int[Array, ""]) -> None:
            stage = lax.rem(n, jnp.int32(stages))
            pl.when(n >= stages)(lambda: plgpu.barrier_wait(self.free.at[stage]))
            token, group = self.shape.place(self.items[lax.div(n, steps)])
            inner = pl.ds(lax.rem(n, steps) * TILE_K, TILE_K)
            rows = pl.ds(self.shape.first_row + group * self.shape.columns, self.shape.columns)
            plgpu.copy_gmem_to_smem(
                x_ref.at[pl.ds(token, ROWS * COMPUTE), inner], self.x.at[stage], self.full.at[stage]
            )
            plgpu.copy_gmem_to_smem(weight_ref.at[rows, inner], self.weight.at[stage], self.full.at[stage])

        def drain(n: Int[Array, ""]) -> None:
            plgpu.barrier_wait(self.free.at[lax.rem(n, jnp.int32(stages))])

        repeat(0, total, load)
        repeat(jnp.maximum(total - stages, 0), total, drain)

    def product(self, i: Int[Array, ""], warpgroup: Int[Array, ""]) -> Float[Array, "64 columns"]:
        """x @ weight.T of this warpgroup's rows of the CTA's tile number i, in float32."""
        first = i * self.shape.steps
        rows = pl.ds(warpgroup * ROWS, ROWS)

        def read(stage: Int[Array, ""]) -> None:
            if self.checked:
                _ = self.x[stage], self.weight[stage]
                plgpu.commit_smem()

        def release(n: Int[Array, ""]) -> None:
            stage = lax.rem(n, jnp.int32(self.shape.stages))
            read(stage)
            plgpu.barrier_arrive(self.free.at[stage])

        def multiply(acc: Ref) -> Float[Array, "64 columns"]:
            def step(k: Int[Array, ""]) -> None:
                stage = lax.rem(first + k, jnp.int32(self.shape.stages))
                plgpu.barrier_wait(self.full.at[stage])
                read(stage)
                plgpu.wgmma(acc, self.x.at[stage, rows], self.weight.at[stage].transpose((1, 0)))
                plgpu.wgmma_wait(1)
                pl.when(k > 0)(lambda: release(first + k - 1))

            repeat(0, self.shape.steps, step)
            result = acc[...]
            release(first + self.shape.steps - 1)
            return result

        return pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((ROWS, self.shape.columns), jnp.float32))


@dataclass(frozen=True)
class _Epilogue:
    """Bias, rotation and the write to the slots of one warpgroup's tile."""

    shape: _Shape
    warpgroup: Int[Array, ""]
    cache: Ref
    layer: Ref
    slots: Ref
    bias: Ref | None
    angles: list[Ref]
    out: Ref

    def __call__(self, item: Int[Array, ""], product: Float[Array, "64 columns"]) -> None:
        shape = self.shape
        token, group = shape.place(item)
        token = pl.multiple_of(token + self.warpgroup * ROWS, ROWS)
        if self.bias is not None:
            bias = plgpu.load(
                self.bias.at[pl.ds(group * shape.columns, shape.columns)],
                layout=plgpu.Layout.WGMMA.reduce(0),
                optimized=False,
            )
            product += lax.broadcast_in_dim(bias, product.shape, (1,))
        which = lax.div(group * shape.heads, jnp.int32(shape.kv_heads))
        for n in range(shape.heads):
            head = product[:, n * shape.head_dim : (n + 1) * shape.head_dim].astype(shape.dtype)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the head before this one has left ``out``
            self._turn(head, token, which)
            plgpu.commit_smem()
            self._store(token, which, group * shape.heads + n - which * shape.kv_heads)

    def _turn(self, head: Float[Array, "64 D"], token: Int[Array, ""], which: Int[Array, ""]) -> None:
        """Put a head into ``out``, turned if it is one of K."""
        if not self.angles:
            self.out[...] = head
            return
        half = self.shape.head_dim // 2
        cos, sin = (
            plgpu.load(angle.at[pl.ds(token, ROWS)], layout=plgpu.Layout.WGMMA, optimized=False)
            for angle in self.angles
        )
        # Values are turned by nothing: Mosaic does not select by a scalar, and this is exact.
        is_key = (which == 0).astype(jnp.float32)
        cos, sin = cos * is_key + (1 - is_key), sin * is_key
        first, second = (head[:, i * half : (i + 1) * half].astype(jnp.float32) for i in range(2))
        put(self.out.at[:, :half], (first * cos - second * sin).astype(self.shape.dtype))
        put(self.out.at[:, half:], (second * cos + first * sin).astype(self.shape.dtype))

    def _store(self, token: Int[Array, ""], which: Int[Array, ""], head: Int[Array, ""]) -> None:
        run, block_size = self.shape.run, jnp.int32(self.shape.block_size)

        def store(r: Int[Array, ""]) -> None:
            slot = self.slots[token + r * run]

            @pl.when(slot < self.shape.num_slots)
            def _() -> None:
                rows = pl.ds(pl.multiple_of(lax.rem(slot, block_size), run), run)
                place = self.cache.at[lax.div(slot, block_size), self.layer[0], which, head, rows]
                plgpu.copy_smem_to_gmem(self.out.at[pl.ds(pl.multiple_of(r * run, run), run)], place)

        repeat(0, ROWS // run, store)
