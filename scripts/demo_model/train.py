"""Training of the demonstration model under a wall-clock budget, resumable from its checkpoint."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-not-found, import-untyped, unused-ignore]
from jaxtyping import Array, Float, Int
from tokenizers import Tokenizer

from scripts.demo_model.batches import WEIGHTS, BatchMaker, Kind, RowKind
from scripts.demo_model.corpus import load_corpus, train_tokenizer
from scripts.demo_model.model import DemoConfig, Params, forward, init_params


@dataclass(frozen=True)
class Phase:
    """Until ``until`` (a fraction of the budget): ``rows`` sequences of ``length`` tokens a step, mixed by ``mix``."""

    until: float
    rows: int
    length: int
    mix: dict[RowKind, float]


# Looking back is learned first and on short sequences, where it appears within minutes; then text and distance grow.
PHASES = (
    Phase(0.06, 64, 64, {"copy": 0.5, "recall": 0.5}),
    Phase(0.30, 16, 128, {"recall": 0.5, "text": 0.5}),
    Phase(0.42, 8, 256, {"recall": 0.4, "text": 0.6}),
    Phase(0.66, 8, 256, {"recall": 0.75, "text": 0.25}),
    Phase(0.84, 4, 512, {"recall": 0.5, "text": 0.5}),
    Phase(0.93, 4, 512, {"recall": 0.3, "text": 0.7}),
    Phase(1.00, 2, 1152, {"recall": 0.35, "text": 0.65}),
)
PEAK_RATE = 3e-3
WARMUP, DECAY_FROM, LAST = 0.01, 0.6, 0.03
CHECKPOINT_SECONDS, LOG_SECONDS = 240.0, 60.0


def learning_rate(done: float) -> float:
    """Warmup, stable, linear decay, in ``done``, the fraction of the budget that is spent."""
    decayed = 1 - (1 - LAST) * max(0.0, done - DECAY_FROM) / (1 - DECAY_FROM)
    return PEAK_RATE * max(0.01, min(done / WARMUP, decayed, 1.0))


def make_optimizer() -> optax.GradientTransformation:
    """Muon (arXiv 2502.16982, with AdamW's update size) for matrices, AdamW for embedding and norms.

    The rate is 1: the step multiplies by the schedule's rate, which follows the clock.
    """

    def dimensions(params: Params) -> dict[str, Any]:
        return {
            name: None if "embed" in name or "norm" in name else optax.contrib.MuonDimensionNumbers() for name in params
        }

    muon = optax.contrib.muon(
        1.0,
        weight_decay=0.05,
        adam_b2=0.98,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=dimensions,
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def loss_by_kind(
    params: Params, tokens: Int[Array, "B T1"], kinds: Int[Array, "B T"], config: DemoConfig, dtype: Any
) -> tuple[Float[Array, ""], Float[Array, "3 K"]]:
    """Weighted cross entropy in nats; and per kind: count, sum of losses, number of right first guesses."""
    logits = forward(params, tokens[:, :-1], config, dtype)
    targets = tokens[:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    weights = jnp.array([WEIGHTS[kind] for kind in Kind])[kinds]
    # Cheaper than an argmax: the cross entropy computes the maximum anyway.
    right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] >= jnp.max(logits, axis=-1)
    by_kind = jax.nn.one_hot(kinds, len(Kind))
    sums = jnp.stack([jnp.einsum("bt,btk->k", x, by_kind) for x in (jnp.ones_like(losses), losses, right)])
    return jnp.sum(losses * weights) / jnp.sum(weights), sums


Step = Callable[..., tuple[Params, optax.OptState, Float[Array, "3 K"]]]


def make_step(config: DemoConfig, optimizer: optax.GradientTransformation, dtype: Any) -> Step:
    """The jitted training step; params and optimizer state are donated."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(
        params: Params, state: optax.OptState, tokens: Int[Array, "B T1"], kinds: Int[Array, "B T"], rate: float
    ) -> tuple[Params, optax.OptState, Float[Array, "3 K"]]:
        gradients, sums = jax.grad(loss_by_kind, has_aux=True)(params, tokens, kinds, config, dtype)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, jax.tree.map(lambda u: rate * u, updates)), state, sums

    return step


@dataclass(frozen=True)
class Progress:
    """Where a run stands: steps taken, seconds trained, tokens seen."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0


def save_checkpoint(workdir: Path, tree: Any, progress: Progress) -> None:
    """Write leaves and progress to one file, under another name first: a cut never leaves half a checkpoint."""
    leaves: dict[str, Any] = {f"leaf{index}": np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(tree))}
    partial_file = workdir / "partial.npz"
    np.savez(partial_file, progress=json.dumps(asdict(progress)), **leaves)
    partial_file.replace(workdir / "checkpoint.npz")


def load_checkpoint(workdir: Path, tree: Any) -> tuple[Any, Progress]:
    """The checkpoint in the shape of ``tree``; ``tree`` itself and no progress where there is none."""
    path = workdir / "checkpoint.npz"
    if not path.exists():
        return tree, Progress()
    with np.load(path) as saved:
        leaves = [jnp.asarray(saved[f"leaf{index}"]) for index in range(len(jax.tree.leaves(tree)))]
        progress = Progress(**json.loads(str(saved["progress"])))
    return jax.tree.unflatten(jax.tree.structure(tree), leaves), progress


def load_params(workdir: Path, config: DemoConfig) -> tuple[Params, Progress]:
    """The parameters of the checkpoint."""
    params = init_params(config, jax.random.key(0))
    (params, _), progress = load_checkpoint(workdir, (params, make_optimizer().init(params)))
    if not progress.step:
        raise FileNotFoundError(f"{workdir}: no checkpoint.npz; train first")
    return params, progress


def get_tokenizer(workdir: Path) -> Tokenizer:
    """The run's tokenizer: trained once, then read from the working directory."""
    path = workdir / "tokenizer.json"
    if not path.exists():
        train_tokenizer(load_corpus().train).save(str(path))
    return Tokenizer.from_file(str(path))


def describe(progress: Progress, rate: float, speed: float, sums: np.ndarray) -> str:
    """One log line: place, speed, and loss and accuracy of each kind of target."""
    parts = [
        f"{kind.name.lower()} {sums[1, kind] / sums[0, kind]:.3f} ({sums[2, kind] / sums[0, kind]:.1%})"
        for kind in Kind
        if kind and sums[0, kind]
    ]
    place = f"step {progress.step} {progress.seconds / 60:.1f} min {progress.tokens / 1e6:.2f} Mtok"
    return f"{time.strftime('%H:%M:%S')} {place} {speed:.0f} tok/s lr {rate:.1e} | " + ", ".join(parts)


def train(workdir: Path, config: DemoConfig, minutes: float, dtype: Any, seed: int = 0) -> None:
    """Train until ``minutes`` of this run's training time, over all resumptions, are spent."""
    workdir.mkdir(parents=True, exist_ok=True)
    maker = BatchMaker(get_tokenizer(workdir), load_corpus(), seed)
    optimizer = make_optimizer()
    step = make_step(config, optimizer, dtype)
    params = init_params(config, jax.random.key(seed))
    (params, state), progress = load_checkpoint(workdir, (params, optimizer.init(params)))
    began = time.monotonic() - progress.seconds
    saved = logged = progress
    sums = np.zeros((3, len(Kind)))
    while progress.seconds < 60 * minutes:
        done = progress.seconds / (60 * minutes)
        phase = next(phase for phase in PHASES if done < phase.until)
        batch = maker.batch(progress.step, phase.rows, phase.length, phase.mix)
        rate = learning_rate(done)
        params, state, counted = step(params, state, batch.tokens, batch.kinds, rate)
        sums += np.asarray(counted)
        progress = Progress(progress.step + 1, time.monotonic() - began, progress.tokens + phase.rows * phase.length)
        if progress.seconds - logged.seconds >= LOG_SECONDS:
            speed = (progress.tokens - logged.tokens) / (progress.seconds - logged.seconds)
            print(describe(progress, rate, speed, sums), flush=True)
            logged, sums = progress, np.zeros_like(sums)
        if progress.seconds - saved.seconds >= CHECKPOINT_SECONDS:
            save_checkpoint(workdir, (params, state), progress)
            saved = progress
    save_checkpoint(workdir, (params, state), progress)
