"""What must hold of a scheduler between any two calls."""

from collections import Counter, defaultdict

from jaxgen.cache.host_tier import state_key, window_key
from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import ServiceClass
from jaxgen.core.standing import Level
from jaxgen.scheduling.ordered_work import NO_WORK, Work
from jaxgen.scheduling.service.policy import ServicePolicy
from tests.support.scheduler_book import Book, level
from tests.support.scheduler_world import Content


def every_block_has_its_owners(book: Book) -> None:
    """In the pool of each kind of cache."""
    held = [[sequence.blocks.table for sequence in book.live.values()]]
    for number in range(len(book.cache.windows)):
        running = [sequence.blocks.windows[number] for sequence in book.running()]
        held.append([blocks.table[blocks.num_freed :] for blocks in running])
    for pool, tables in zip(book.scheduler.pools, held, strict=True):
        owners = Counter(block for table in tables for block in table)
        assert [pool.num_owners(block) for block in range(pool.num_blocks)] == [
            owners[block] for block in range(pool.num_blocks)
        ]
        assert len(owners) + pool.num_free == pool.num_blocks
        assert pool.num_cached <= (pool.num_free if book.config.prefix_caching else 0)
        assert all(len(set(table)) == len(table) for table in tables)
        book.seen["shared"] += max(owners.values(), default=0) > 1


def what_is_found_is_what_its_key_says(book: Book) -> None:
    """Of every key that any sequence has, the block's content leads to that key."""
    for sequence in book.live.values():
        for index, key in enumerate(sequence.blocks.keys):
            for number, pool in enumerate(book.scheduler.pools, -1):
                block = pool.find(key)
                if block is not None:
                    found = book.device.content(block, None if number < 0 else number)
                    assert found == _content(book, sequence, index)


def every_snapshot_is_what_its_key_says(book: Book) -> None:
    """Of every key that any sequence has, the snapshot has taken in the tokens that lead to that key."""
    states = book.scheduler._kv_cache.states
    if states is None:
        return
    assert len(states._used) + len(states._free) == (book.cache.num_snapshots or 0) * book.config.prefix_caching
    for sequence in book.live.values():
        for index, key in enumerate(sequence.blocks.keys):
            snapshot = states._by_key.get(key)
            if snapshot is not None:
                assert book.device.snapshots[snapshot.number] == _content(book, sequence, index)[-1]


def what_the_host_holds_is_what_its_key_says(book: Book) -> None:
    if not book.host:
        return
    store = book.host.tier.store
    assert store.num_filled + sum(store._reserved.values()) <= store.num_blocks
    assert store.num_filled == sum(store._places.values())
    assert store.num_reserved == len(book.host.saves)
    for sequence in book.live.values():
        for index, key in enumerate(sequence.blocks.keys):
            expected = _content(book, sequence, index)
            if store.holds(state_key(key)):
                assert store[state_key(key)].kv == expected[-1]
            for kind in range(1, 1 + len(book.cache.windows)):
                if store.holds(window_key(key, kind)):
                    assert store[window_key(key, kind)].kv == expected
            if not store.holds(key):
                continue
            assert store[key].kv == expected
            assert store[key].inputs in (expected, None)


def every_sequence_holds_what_its_status_says(book: Book) -> None:
    running, waiting, ending = book.running(), book.waiting(), book.ending()
    assert len(running) + len(waiting) + len(ending) == len(book.live)
    scheduler = book.scheduler
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_ending) == tuple(
        map(len, (running, waiting, ending))
    )
    assert scheduler.waiting_tokens == sum(s.num_given for s in waiting if not s.request.background)
    assert scheduler.has_work is bool(book.live)
    assert scheduler.num_online == sum(not sequence.request.background for sequence in book.live.values())
    assert len({sequence.row for sequence in running}) == len(running)
    for sequence in running:
        assert sequence.row in range(book.config.max_num_seqs)
        held = len(sequence.blocks.table)
        # The token that comes last may have no slot yet, nor those that may follow it alone.
        known = sequence.num_tokens - sequence.num_forced
        assert book.blocks(known - 1) <= held <= book.blocks(sequence.num_tokens)
    for sequence in book.live.values():
        restore = sequence.blocks.restore
        if restore is not None:
            assert sequence.row is not None
            assert not restore.cancelled
            assert sequence.num_computed <= restore.start <= restore.end < sequence.num_tokens
            assert restore.start < restore.end or restore.state is not None or restore.windows
    for sequence in (*waiting, *ending):
        assert (sequence.blocks.table, sequence.blocks.windows) == ([], ())
        assert (sequence.row, sequence.num_computed) == (None, 0)


def the_parts_of_a_sequence_follow_one_another(book: Book) -> None:
    """As KVCacheManager draws them."""
    for sequence in book.running():
        blocks, size = sequence.blocks, book.cache.block_size
        shared, registered, held = [
            count * size for count in (blocks.num_shared, blocks.num_registered, blocks.num_held)
        ]
        assert 0 <= shared <= registered <= sequence.num_computed <= held
        known = len(sequence.tokens)
        assert registered <= known <= sequence.num_tokens <= sequence.max_length
        assert sequence.num_given <= known - sequence.num_forced
        assert sequence.num_computed <= sequence.num_tokens


def the_order_is_that_of_service(book: Book) -> None:
    """One tenant's requests of a class by priority, whatever else there is."""
    for line in (book.running(), book.waiting()):
        if book.plain:
            assert line == sorted(line, key=lambda s: (*level(s), s.standing.due_key))
        groups: defaultdict[tuple[str, ServiceClass, Level], list[int]] = defaultdict(list)
        for sequence in line:
            groups[sequence.request.tenant, sequence.standing.service, sequence.standing.level].append(
                sequence.priority
            )
            assert (sequence.standing.level is Level.BACKGROUND) is sequence.request.background
            if sequence.standing.service.has_targets and not sequence.request.background:
                assert sequence.standing.level is Level.WITH_TARGETS
        for (_, service, group), priorities in groups.items():
            if group is not Level.WITH_TARGETS or service.has_targets:
                assert priorities == sorted(priorities)


def an_idle_one_owns_nothing(book: Book) -> None:
    if not book.live:
        book.scheduler.check_idle()


def what_is_pending_is_in_flight(book: Book) -> None:
    pending = Counter(c.sequence.arrival for plan, _ in book.in_flight for c in plan.chunks if c.samples)
    for sequence in book.live.values():
        assert sequence.num_pending == pending[sequence.arrival]
    for sequence in book.ending():
        assert sequence.num_pending == (sequence.params.max_tokens > 0)


def the_backlog_is_what_the_queues_say(book: Book) -> None:
    """Summed anew from all that runs and waits."""
    policy = book.scheduler.policy
    if not isinstance(policy, ServicePolicy):
        return
    backlog, live = policy._backlog, [*book.running(), *book.waiting()]
    backlog.update()
    assert set(backlog._recorded) == set(live)
    wanting = [s for s in live if s.row is None or s.num_uncomputed > 1 + s.num_forced]
    assert {s for s in live if backlog.wants(s)} == set(wanting)
    assert set(backlog._coming._depth) == {s for s in wanting if not s.request.background}
    assert backlog.promises == Counter(
        s.standing.service for s in live if s.standing.service.inter_token_seconds is not None
    )
    assert backlog._given_up == Counter(
        (s.request.tenant, s.standing.service.name)
        for s in book.waiting()
        if s.standing.service is not s.request.service
    )
    for tier in Level:
        tenants = {s.request.tenant for s in wanting if s.standing.level is tier}
        assert set(backlog._lines[tier]) == tenants
        for tenant in tenants:
            line = sorted(
                [s for s in wanting if (s.standing.level, s.request.tenant) == (tier, tenant)],
                key=lambda s: s.standing.due_key,
            )
            for index, sequence in enumerate(line):
                assert backlog._lines[tier][tenant].before(sequence.standing.due_key) == _work(line[:index], book)
            assert backlog._lines[tier][tenant].total == _work(line, book)
        assert backlog.total(tier) == _work([s for s in wanting if s.standing.level is tier], book)


def every_tenant_has_its_rows(book: Book) -> None:
    """Counted anew; of several tenants each without a row is owed one for its first that waits."""
    for background, tenants in book.scheduler.policy.queues._tenant_queues.items():
        running = Counter(s.request.tenant for s in book.running() if s.request.background is background)
        waiting: dict[str, list[Sequence]] = defaultdict(list)
        for sequence in sorted(book.waiting(), key=lambda s: s.standing.order_key):
            if sequence.request.background is background:
                waiting[sequence.request.tenant].append(sequence)
        assert tenants._running == running
        assert tenants._waiting == waiting
        owed = [line[0] for tenant, line in waiting.items() if tenant not in running]
        assert tenants.owed(99) == ([] if len(running) + len(waiting) < 2 else owed)


def _work(sequences: list[Sequence], book: Book) -> Work:
    """What is left to compute of them, each counted by itself."""
    works = [NO_WORK]
    for s in sequences:
        found = s.standing.num_expected if s.row is None else 0
        left = range(s.num_computed + found, s.num_tokens)
        waits, decodes = s.row is None, s.row is None and s.params.max_tokens > 1
        works.append(
            Work(
                tokens=len(left),
                positions=sum([left.start + left.stop for _ in left]) // 2,
                sequences=1,
                waiting=int(waits),
                blocks=book.blocks(s.num_tokens) - s.standing.num_expected_shared if waits else 0,
                max_tokens=s.params.max_tokens,
                will_decode=int(decodes),
                contexts=s.num_tokens if decodes else 0,
            )
        )
    return Work(*[sum(parts) for parts in zip(*works, strict=True)])


def _content(book: Book, sequence: Sequence, index: int) -> list[Content]:
    """What a sequence's block of that index holds when it is full."""
    start = index * book.cache.block_size
    return [
        (sequence.request.cache_salt, tuple(sequence.tokens[: position + 1]))
        for position in range(start, start + book.cache.block_size)
    ]


INVARIANTS = (
    every_block_has_its_owners,
    what_is_found_is_what_its_key_says,
    every_snapshot_is_what_its_key_says,
    what_the_host_holds_is_what_its_key_says,
    every_sequence_holds_what_its_status_says,
    the_parts_of_a_sequence_follow_one_another,
    the_order_is_that_of_service,
    what_is_pending_is_in_flight,
    the_backlog_is_what_the_queues_say,
    an_idle_one_owns_nothing,
    every_tenant_has_its_rows,
)
