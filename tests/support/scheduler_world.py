"""What surrounds a scheduler in its state machine: requests, a device whose slots say what was written there, and
copies to and from a host store that may take long or fail."""

from dataclasses import dataclass, field, replace
from zlib import crc32

from hypothesis import strategies as st

from jaxgen.core.request import FinishReason, Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Chunk, Restore, Sequence
from jaxgen.core.service_class import DEFAULT_CLASS, ServiceClass
from jaxgen.core.step_plan import Save, StepPlan
from jaxgen.offload.tiers.host_store import HostBlock, HostStore
from jaxgen.offload.tiers.offload_tier import KindPlan, OffloadTier, Split, StatePlan
from jaxgen.scheduling.drafts import Draft

EOS = 0
STOP_TOKEN = 1
VOCAB = 12


def next_token(context: list[int]) -> int:
    return crc32(bytes(context)) % VOCAB


def full_recomputation(request: Request) -> tuple[list[int], FinishReason]:
    """Tokens and reason of a request that has the device to itself, one step for each token."""
    params, tokens = request.params, list(request.prompt)
    for count in range(1, params.max_tokens + 1):
        token = next_token(tokens)
        tokens.append(token)
        ends = token in params.stop_token_ids or (token == EOS and not params.ignore_eos)
        if ends and count >= params.min_tokens:
            return tokens, FinishReason.STOP
    return tokens, FinishReason.LENGTH


@dataclass(frozen=True)
class Arrival:
    """A request in eighths of what fits: of the model's length for the prompt, of what that leaves for max_tokens."""

    prompt: int
    max_tokens: int
    seed: int
    min_tokens: int
    ignore_eos: bool
    stops: bool
    salt: str | None
    prompt_logprobs: int | None
    priority: int
    background: bool
    constrained: bool = False
    """It may be computed only when its last token has arrived, as under a grammar."""
    service: ServiceClass = DEFAULT_CLASS
    tenant: str = ""
    answered: int = 0
    """Tokens that its answer begins with, as that of a resumed stream; one at least is left to sample."""
    fork: int = 99
    """From this position on its prompt is not that of others of the same seed."""

    def request(self, name: str, longest: int) -> Request:
        prompt = max(1, longest * self.prompt // 8)
        max_tokens = max(0, longest - prompt) * self.max_tokens // 8
        params = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=0 if self.constrained else min(self.min_tokens, max_tokens),  # else the constraint's affair
            ignore_eos=self.ignore_eos,
            stop_token_ids=(STOP_TOKEN,) if self.stops else (),
            prompt_logprobs=self.prompt_logprobs,
        )
        tokens = tuple(next_token([self.seed, i, self.fork * (i >= self.fork)]) for i in range(prompt))
        request = Request(
            name,
            tokens,
            params,
            self.salt,
            priority=self.priority,
            background=self.background,
            service=self.service,
            tenant=self.tenant,
            tenant_weight=1.0 + len(self.tenant),
        )
        generated, _ = full_recomputation(request) if self.answered else (tokens, None)
        return replace(request, answer=tuple(generated[prompt : min(prompt + self.answered, len(generated) - 1)]))


# Short prompts with much to say are the likeliest, for these fill the pool while they run; a few are refused.
ARRIVALS = st.builds(
    Arrival,
    prompt=st.integers(0, 2) | st.integers(0, 9),
    max_tokens=st.integers(4, 8) | st.integers(0, 9) | st.integers(0, 1),
    seed=st.integers(0, 1) | st.integers(0, 255),  # requests of one seed and salt have a prefix in common
    min_tokens=st.sampled_from([0, 0, 3, 99]),
    ignore_eos=st.booleans(),
    stops=st.booleans(),
    salt=st.sampled_from([None, None, None, "a"]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
    priority=st.sampled_from([0, 0, 0, -1, 1]),
    background=st.sampled_from([False, False, True]),
    constrained=st.sampled_from([False, False, True]),
    answered=st.sampled_from([0, 0, 0, 2]),
)


Content = tuple[str | None, tuple[int, ...]] | None
"""Of one slot: the salt and the tokens up to the one whose K and V it holds."""


@dataclass
class Window:
    """What a device has of a kind of cache with a window, and its block tables by row."""

    window: int
    slots: dict[int, Content] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)


class Guesser:
    """Drafts what a sequence goes on with, wrong in every so many places."""

    def __init__(self, wrong_every: int) -> None:
        self._wrong_every = wrong_every

    def draft(self, sequence: Sequence, most: int) -> Draft:
        tokens = list(sequence.tokens)
        for _ in range(most):
            token = next_token(tokens)
            wrong = crc32(b"draft" + bytes(tokens)) % self._wrong_every == 0
            tokens.append((token + wrong) % VOCAB)
        return Draft(tuple(tokens[-most:]), 0.5 + sequence.arrival % 2 / 2)

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Learns nothing."""

    def ended(self, sequence: Sequence) -> None:
        """Nothing is kept of it."""


class Device:
    """What the steps leave in the cache, and what it was told of each row."""

    def __init__(self, block_size: int, windows: tuple[int, ...] = (), *, has_states: bool = False) -> None:
        self.has_states = has_states
        self.slots: dict[int, Content] = {}
        self.inputs: dict[int, Content] = {}
        self.rows: dict[int, tuple[Sequence, list[int], list[int]]] = {}
        """By row: the sequence, its tokens and its block table as the device knows them."""
        self.windows = [Window(window) for window in windows]
        self.states: dict[int, Content] = {}
        """By row: the salt and the tokens that its state has taken in."""
        self.snapshots: dict[int, Content] = {}
        self._block_size = block_size

    def load(self, plan: StepPlan) -> None:
        """Copies blocks, and is told of the sequences that the plan admits or moves."""
        for copy in plan.copies:
            self.fill(copy.target, self.content(copy.source))
            self.inputs.update(zip(self._slots(copy.target), self.input_content(copy.source), strict=True))
        for sequence in (*plan.relocated, *plan.admitted):
            assert sequence.row is not None
            self.rows[sequence.row] = sequence, list(sequence.tokens), list(sequence.blocks.table)
            for number, kind in enumerate(self.windows):
                kind.tables[sequence.row] = list(sequence.blocks.windows[number].table)
        for load in plan.state_loads:
            self.states[load.row] = self.snapshots[load.snapshot]

    def run(self, plan: StepPlan) -> list[int]:
        """Writes every chunk's tokens, then reads every context and samples."""
        self.load(plan)
        written = [self._write(chunk) for chunk in plan.chunks]
        assert len({slot for slots in written for slot in slots}) == sum(map(len, written)) == plan.num_tokens
        for number, kind in enumerate(self.windows):
            in_kind = [slot for chunk in plan.chunks for slot in self._write_window(number, kind, chunk)]
            assert len(set(in_kind)) == len(in_kind) == plan.num_tokens
            for chunk in plan.chunks:
                self._check_window(kind, chunk)
        self.snapshots.update({copy.snapshot: self.states[copy.row] for copy in plan.snapshots})
        return [token for chunk in plan.chunks if chunk.samples for token in self._read(chunk)]

    def content(self, block: int, number: int | None = None) -> list[Content]:
        """What it holds of K and V; ``number``: of the kind with a window whose block it is."""
        slots = self.slots if number is None else self.windows[number].slots
        return [slots.get(slot) for slot in self._slots(block)]

    def input_content(self, block: int) -> list[Content]:
        """What it holds of layer inputs."""
        return [self.inputs.get(slot) for slot in self._slots(block)]

    def fill(self, block: int, content: list[Content], number: int | None = None) -> None:
        """With K and V; whatever it holds of inputs stays. ``number``: as of ``content``."""
        slots = self.slots if number is None else self.windows[number].slots
        slots.update(zip(self._slots(block), content, strict=True))

    def project(self, block: int, inputs: list[Content]) -> None:
        """K and V are what their inputs are."""
        self.inputs.update(zip(self._slots(block), inputs, strict=True))
        self.fill(block, inputs)

    def _slots(self, block: int) -> range:
        return range(block * self._block_size, (block + 1) * self._block_size)

    def _write(self, chunk: Chunk) -> list[int]:
        sequence, tokens, table = self._row(chunk)
        if chunk.end > len(table) * self._block_size:
            table.append(sequence.blocks.table[(chunk.end - 1) // self._block_size])
        assert table == sequence.blocks.table
        tokens += sequence.tokens[len(tokens) : chunk.end]
        written = [*tokens, *chunk.drafts]
        slots = [self._slot(table, position) for position in range(chunk.start, chunk.end)]
        for position, slot in zip(range(chunk.start, chunk.end), slots, strict=True):
            self.slots[slot] = self.inputs[slot] = sequence.request.cache_salt, tuple(written[: position + 1])
        if self.has_states:
            self._take_in(chunk, tokens)
        return slots

    def _take_in(self, chunk: Chunk, tokens: list[int]) -> None:
        """A row's state goes on from the tokens before the chunk, or begins anew."""
        sequence = chunk.sequence
        assert sequence.row is not None
        before = sequence.request.cache_salt, tuple(tokens[: chunk.start])
        assert chunk.start == 0 or self.states[sequence.row] == before
        self.states[sequence.row] = sequence.request.cache_salt, tuple(tokens[: chunk.end])

    def _read(self, chunk: Chunk) -> list[int]:
        """What is sampled after the last known token and after each draft: the host finds which drafts are right."""
        sequence, tokens, table = self._row(chunk)
        assert chunk.end - len(chunk.drafts) == len(tokens)
        read = [*tokens, *chunk.drafts]
        for position in range(chunk.end):
            expected = sequence.request.cache_salt, tuple(read[: position + 1])
            assert self.slots[self._slot(table, position)] == expected
        sampled = [next_token(read[:end]) for end in range(len(tokens), chunk.end + 1)]
        if not chunk.drafts:
            tokens += sampled
        return sampled

    def _write_window(self, number: int, kind: Window, chunk: Chunk) -> list[int]:
        """Notes the blocks that begin in the chunk, and writes its tokens."""
        row, blocks = chunk.sequence.row, chunk.sequence.blocks.windows[number]
        assert row is not None
        tokens = [*self._row(chunk)[1], *chunk.drafts]
        table, slots = kind.tables[row], []
        for position in range(chunk.start, chunk.end):
            index = position // self._block_size
            if position % self._block_size == 0:
                table[index:] = [blocks.entry(index), *table[index + 1 :]]
            slots.append(self._slot(table, position))
            kind.slots[slots[-1]] = chunk.sequence.request.cache_salt, tuple(tokens[: position + 1])
        return slots

    def _check_window(self, kind: Window, chunk: Chunk) -> None:
        """Every token of the chunk finds all that it attends to."""
        assert chunk.sequence.row is not None
        tokens = [*self._row(chunk)[1], *chunk.drafts]
        table = kind.tables[chunk.sequence.row]
        for position in range(max(0, chunk.start - kind.window + 1), chunk.end):
            expected = chunk.sequence.request.cache_salt, tuple(tokens[: position + 1])
            assert kind.slots[self._slot(table, position)] == expected

    def _row(self, chunk: Chunk) -> tuple[Sequence, list[int], list[int]]:
        assert chunk.sequence.row is not None
        row = self.rows[chunk.sequence.row]
        assert row[0] is chunk.sequence
        return row

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self._block_size] * self._block_size + position % self._block_size


def small_tier(
    num_blocks: int,
    block_size: int,
    most_saving: int,
    recomputed: int,
    projected: int,
    state_places: int = 0,
    window_places: tuple[int, ...] = (),
) -> OffloadTier:
    """Over a host store of ``num_blocks``; of each stretch as many blocks are computed again and projected as said."""

    def planner(blocks: int, start: int, free_tokens: int, num_waiting: int, inputs_known: bool) -> Split:
        assert (start % block_size, free_tokens > 0, num_waiting >= 0) == (0, True, True)
        computed = min(recomputed, blocks)
        return Split(computed, 0.0, min(projected, blocks - computed) if inputs_known else 0)

    store: HostStore[HostBlock] = HostStore(num_blocks)

    def pays(again: int, start: int, copied: tuple[int, ...], with_state: bool) -> bool:
        assert (start % block_size, len(copied)) == (0, 1 + len(window_places))
        assert again >= max(copied) if window_places else again > copied[0] or with_state
        return again > recomputed

    kinds = [KindPlan(places, most_saving) for places in (1, *window_places)]
    states = StatePlan(state_places, planner) if state_places else None
    return OffloadTier(store, block_size=block_size, kinds=kinds, planner=planner, states=states, pays=pays)


class Host:
    """The copies under way between device and host store."""

    def __init__(self, tier: OffloadTier, device: Device) -> None:
        self.tier = tier
        self.saves: list[tuple[bytes, HostBlock]] = []
        self.restores: list[Restore] = []
        self._device = device

    def start(self, plan: StepPlan) -> None:
        """Before the plan runs."""
        self.saves += [(save.key, self._gathered(save)) for save in plan.saves]
        self.saves += [(save.key, HostBlock(self._device.snapshots[save.block])) for save in plan.state_saves]
        self.restores += plan.restores

    def _gathered(self, save: Save) -> HostBlock:
        if save.kind:
            return HostBlock(self._device.content(save.block, save.kind - 1))
        kv, inputs = self._device.content(save.block), self._device.input_content(save.block)
        assert inputs == kv or not save.has_inputs
        return HostBlock(kv, inputs if save.has_inputs else None)

    def land_save(self, *, whole: bool) -> None:
        key, content = self.saves.pop(0)
        self.tier.saved(key, content if whole else None)

    def land_restore(self, *, whole: bool) -> Restore:
        restore = self.restores.pop(0)
        if whole and not restore.cancelled:
            projected = restore.num_projected
            for block, piece in zip(restore.blocks[:projected], restore.pieces[:projected], strict=True):
                self._device.project(block, piece.inputs)
            for block, piece in zip(restore.blocks[projected:], restore.pieces[projected:], strict=True):
                self._device.fill(block, piece.kv)
            for window in restore.windows:
                for block, piece in zip(window.blocks, window.pieces, strict=True):
                    self._device.fill(block, piece.kv, window.kind - 1)
            if restore.state is not None:
                self._device.snapshots[restore.state.snapshot] = restore.state.piece.kv
        self.tier.release(restore, whole=whole)
        return restore

    def fail(self, device: Device) -> None:
        """The device's state is lost, and every copy with it."""
        self._device = device
        while self.saves:
            self.land_save(whole=False)
        while self.restores:
            assert self.land_restore(whole=False).cancelled
