"""Prove a GPU's kernels before JAX opens it, and choose the kernels of an engine."""

import logging
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from jaxgen.assembly.device import is_open
from jaxgen.assembly.resolved_model import ResolvedModel
from jaxgen.core.config import EngineOptions, KernelChoice
from jaxgen.core.model_config import ModelConfig
from jaxgen.hardware.nvidia import Gpu
from jaxgen.kernels.choice import choose, made_for, reference
from jaxgen.kernels.gpu_proof import gpu_sources
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.proof import judge
from jaxgen.kernels.proving.verdict import NOTHING_PROVEN, Finding, ServedShapes, Verdict, operations_of
from jaxgen.sizing.memory_request import narrow_width
from jaxgen.sizing.step_bounds import DEFAULT_BLOCK_SIZE, scheduler_config
from jaxgen.sizing.token_budget import TokenBudget

logger = logging.getLogger(__name__)


def served_shapes(
    model: ModelConfig,
    options: EngineOptions,
    budgets: Sequence[TokenBudget],
    tuned: Sequence[int] | None,
    room: int | None,
) -> ServedShapes:
    """Return the attention shapes of the steps that a GPU may run. Raises ConfigError.

    ``room``: bytes of memory that may be used on top of the weights; None: unknown.

    Widths are the ``budgets``, of which the proof decides which it is, unless the options name one, and that of the
    narrow program; with ``tuned`` their smallest and largest.
    """
    most = max(tuned or [budget.tokens for budget in budgets])
    rows = max(budget.most_rows for budget in budgets)
    scheduler = scheduler_config(options, model, most, is_cpu=False, room=room, most_rows=rows)
    widths = {min(tuned), max(tuned)} if tuned else {options.token_budget or budget.tokens for budget in budgets}
    widths = {max(width, options.max_num_seqs or 1) for width in widths}
    narrow = None if options.single_shape else narrow_width(scheduler, is_cpu=False)
    return ServedShapes.of(
        model,
        block_size=options.block_size or DEFAULT_BLOCK_SIZE,
        token_budgets=tuple(sorted(widths | ({narrow} if narrow else set()), reverse=True)),
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=scheduler.max_model_len,
    )


def judge_kernels(
    gpu: Gpu, model: ModelConfig, choice: KernelChoice, shapes: ServedShapes, folder: Path | None
) -> Verdict:
    """Return the verdict on the GPU's kernels; nothing is proven if there are no kernels or ``choice`` wants none.

    Findings are kept in ``folder``.
    """
    kernels = made_for(gpu.device, model, shapes.block_size)
    operations = [name for name in operations_of(model) if name in kernels.own]
    if not operations or choice == "xla":
        return NOTHING_PROVEN
    if choice == "unproven":
        logger.warning("the %s kernels are taken without a proof, as --kernels unproven says", kernels.name)
        return Verdict(otherwise=Finding("right"))
    again = choice == "prove"
    return judge(shapes, gpu, gpu_sources(), folder, operations, may_run=not is_open(), again=again)


def choose_kernels(resolved: ResolvedModel, block_size: int, *, progress: bool) -> Kernels:
    """Return the kernels for the model's device, as ``--kernels`` and the verdict on them say.

    ``progress``: whether a bar may show that native ones are compiled.
    """
    if resolved.kernels == "xla":
        return reference(resolved.device)
    with ExitStack() as stack:
        folder = resolved.caches.kernels
        if folder is None:  # native kernels stay in memory when their file is deleted
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxgen-kernels-")))
        return choose(resolved.device, resolved.model, block_size, folder, resolved.verdict, progress=progress)
