"""Prometheus metrics under the names of vLLM's metrics, with the prefix ``jaxgen_``.

Counters and gauges are read from the engine at each scrape; latencies are measured here, where events arrive. Times in
the queue and for the prompt come from the engine.
"""

from collections.abc import Iterable, Iterator
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from jaxgen.client import EngineClient
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.metrics.engine_parts import (
    LABEL,
    accepted_by_position,
    blocks_by_kind,
    counters_of_parts,
    gauges_of_parts,
)
from jaxgen.server.metrics.histogram import Histogram

_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0)
_REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_LENGTH_BUCKETS = (1, 8, 32, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
AVERAGED_TOKENS = 16
"""Span, in tokens, of the exponentially weighted average of inter-token times that is compared with a target."""


class Metrics:
    """One app's metrics, in their own registry."""

    def __init__(self, engine: EngineClient, classes: Iterable[ServiceClass] = ()) -> None:
        """``classes``: service classes with targets, for their outcomes."""
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine))
        model = engine.model.name

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            result = Histogram(f"jaxgen_{name}", text, {LABEL[0]: model}, buckets)
            self.registry.register(result)
            return result

        self.first_token = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", _REQUEST_BUCKETS
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds", "From one token of a request to its next.", _TOKEN_BUCKETS
        )
        self.request = histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its last token.", _REQUEST_BUCKETS
        )
        self.queue_time = histogram(
            "request_queue_time_seconds", "From a request's arrival to its first step.", _REQUEST_BUCKETS
        )
        self.prompt_time = histogram(
            "request_prefill_time_seconds", "From its first step to its first token.", _REQUEST_BUCKETS
        )
        self.decode_time = histogram(
            "request_decode_time_seconds", "From its first token to its last.", _REQUEST_BUCKETS
        )
        self.prompt_length = histogram("request_prompt_tokens", "Tokens of a request's prompt.", _LENGTH_BUCKETS)
        self.answer_length = histogram(
            "request_generation_tokens", "Tokens generated for a request that ended.", _LENGTH_BUCKETS
        )
        self._responses = Counter(
            "jaxgen_http_responses", "Answers, probes too, by HTTP status.", [*LABEL, "status"], registry=self.registry
        )
        self._finished = Counter(
            "jaxgen_request_success", "Requests ended.", [*LABEL, "finished_reason"], registry=self.registry
        )
        self._class_outcomes = Counter(
            "jaxgen_service_class_requests",
            "Requests of classes with targets, by what came of them.",
            [*LABEL, "service_class", "outcome"],
            registry=self.registry,
        )
        self._model = model
        for reason in ("stop", "length", "abort", "error", "refused"):
            self._finished.labels(model, reason)
        for service in classes:
            for outcome in ("kept", "late_first_token", "late_token", "refused"):
                self._class_outcomes.labels(model, service.name, outcome)

    def count_finished(self, reason: str) -> None:
        """Count an ended engine request.

        ``reason``: stop, length, abort (disconnect or deadline), error or refused (it would have been late).
        """
        self._finished.labels(self._model, reason).inc()

    def count_class_outcome(self, service: ServiceClass, outcome: str) -> None:
        """Count a request of a class with targets.

        ``outcome``: kept, late_first_token, late_token (only a later token was late) or refused.
        """
        self._class_outcomes.labels(self._model, service.name, outcome).inc()

    def count_response(self, status: int) -> None:
        self._responses.labels(self._model, str(status)).inc()


class RequestTimer:
    """Latencies and lengths of one engine request that arrived at ``arrival``, a ``perf_counter`` reading."""

    def __init__(self, metrics: Metrics, arrival: float, request: Request) -> None:
        self._service = request.service
        self._target = request.service.first_token_target(request.num_given)
        self._between = request.service.inter_token_seconds
        self._mean_between: float | None = None
        self._outcome = "kept"
        self._num_prompt = len(request.prompt)
        self._num_generated = 0
        self._metrics = metrics
        self._arrival = arrival
        self.first: float | None = None
        """When its first token arrived, a ``perf_counter`` reading."""
        self._last: float | None = None

    def observe(self, event: TokenEvent) -> None:
        if event.cached_tokens is not None:
            self._metrics.prompt_length.observe(self._num_prompt)
            if event.latency is not None:
                self._metrics.queue_time.observe(event.latency.queue_seconds)
                self._metrics.prompt_time.observe(event.latency.prompt_seconds)
        if event.token is None:
            return
        self._num_generated += 1
        now = perf_counter()
        if self._last is None:
            self.first = now
            self._metrics.first_token.observe(now - self._arrival)
            self._hold_to_first(now)
        else:
            self._metrics.inter_token.observe(now - self._last)
            if self._between is not None:
                self._observe_between(now - self._last, self._between)
        self._last = now

    def _observe_between(self, seconds: float, target: float) -> None:
        """Apply FastGen's rule: at every token the moving average of inter-token times must be within the target."""
        mean = self._mean_between
        self._mean_between = seconds if mean is None else mean + 2 / (AVERAGED_TOKENS + 1) * (seconds - mean)
        if self._mean_between > target and self._outcome == "kept":
            self._outcome = "late_token"

    def _hold_to_first(self, now: float) -> None:
        if self._target is not None and now - self._arrival > self._target:
            self._outcome = "late_first_token"

    def finish(self, reason: str) -> None:
        """Record the end of the request. ``reason``: see ``count_finished``."""
        now = perf_counter()
        if self.first is None:  # no token was requested: the first-token target applies to the whole answer
            self._hold_to_first(now)
        self._metrics.count_finished(reason)
        if self._service.has_targets and reason in ("stop", "length", "refused"):
            self._metrics.count_class_outcome(self._service, "refused" if reason == "refused" else self._outcome)
        if reason in ("stop", "length"):
            self._metrics.request.observe(now - self._arrival)
            self._metrics.answer_length.observe(self._num_generated)
            if self.first is not None and self._last is not None:
                self._metrics.decode_time.observe(self._last - self.first)


class _EngineCollector(Collector):
    """Collects the engine's statistics at each scrape."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        used = stats.blocks_total - stats.blocks_free
        gauges = {
            "num_requests_running": ("Requests that are computed.", stats.num_running),
            "num_requests_waiting": ("Requests that wait for their first step.", stats.num_waiting),
            "kv_cache_usage_perc": ("Share of KV cache blocks in use, 0 to 1.", used / max(stats.blocks_total, 1)),
            "longest_step_seconds": (
                "The longest time of 99 of 100 steps at the current load, and so the time between two tokens.",
                stats.pace.longest_step,
            ),
            "first_token_seconds_per_1000_prompt_tokens": (
                "Seconds to the first token of a new prompt of 1,000 tokens, behind the prompts that wait.",
                stats.pace.first_token,
            ),
            "kv_cache_blocks": ("Blocks in the KV cache.", stats.blocks_total),
            "kv_cache_blocks_cached": ("Blocks that nobody uses, kept for prefixes to come.", stats.blocks_cached),
        }
        counters = {
            "prompt_tokens": ("Prompt tokens computed.", stats.prompt_tokens),
            "generation_tokens": ("Tokens generated.", stats.generation_tokens),
            "step_tokens": ("Tokens of steps, padding included.", stats.step_tokens),
            "padded_tokens": ("Tokens of steps that were padding.", stats.padded_tokens),
            "steps": ("Steps run.", stats.steps),
            "step_seconds": ("Time spent in steps, seconds.", stats.step_seconds),
            "narrow_steps": ("Steps of decodes only that ran by the narrow program.", stats.narrow_steps),
            "stalled_seconds": ("Time with nothing to compute before a copy ended, seconds.", stats.stalled_seconds),
            "host_seconds": ("Time that the engine's thread worked rather than waited, seconds.", stats.host_seconds),
            "prefix_cache_queries": ("Tokens looked up in the prefix cache.", stats.prefix_queries),
            "prefix_cache_hits": ("Tokens found in the prefix cache.", stats.prefix_hits),
            "num_preemptions": ("Requests that lost their blocks and waited again.", stats.preemptions),
            "cache_leaks": ("Times that an idle engine found blocks taken, and emptied the cache.", stats.leaks),
            "compilations_after_ready": (
                "Programs compiled after the engine was ready.",
                stats.compilations_after_ready,
            ),
        }
        gauges |= gauges_of_parts(stats)
        counters |= counters_of_parts(stats)
        model = [self._engine.model.name]
        kernels = InfoMetricFamily("jaxgen_kernels", "What steps are made of, and why of no faster.", labels=LABEL)
        chosen = {name: choice.implementation for name, choice in stats.kernel_choices.items()}
        kernels.add_metric(model, {"kernels": stats.kernels, "reason": stats.kernels_reason, **chosen})
        yield kernels
        cache = InfoMetricFamily("jaxgen_cache_config", "The KV cache's shape, as routers read it.", labels=LABEL)
        if stats.block_size:  # known once the engine is ready; a router may divide by it
            cache.add_metric(model, {"block_size": str(stats.block_size), "num_gpu_blocks": str(stats.blocks_total)})
        yield cache
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"jaxgen_{name}", text, labels=LABEL)
            gauge.add_metric(model, value)
            yield gauge
        states = {"used": used, "cached": stats.blocks_cached, "free": stats.blocks_free - stats.blocks_cached}
        blocks = GaugeMetricFamily("jaxgen_kv_cache_blocks_by_state", "Blocks by state.", labels=[*LABEL, "state"])
        for state, count in states.items():
            blocks.add_metric([*model, state], count)
        yield blocks
        if stats.kinds:
            yield blocks_by_kind(stats.kinds, model)
        if stats.speculation is not None:
            yield accepted_by_position(stats.speculation, model)
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(f"jaxgen_{name}", text, labels=LABEL)
            counter.add_metric(model, value)
            yield counter
