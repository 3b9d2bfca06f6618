"""Faults of what callers see: texts, answers over HTTP, batches."""

from scripts.faults.fault import Fault

TEXT = (
    Fault(
        "beginning-of-a-stop-string-comes-out",
        "text",
        "jaxgen/text/stop_strings.py",
        "certain = len(buffer) - max(self._matched)",
        "certain = len(buffer)",
        ("tests/text/test_tokenizer.py::test_stop_string_may_span_tokens_and_characters",),
    ),
    Fault(
        "stop-string-in-the-text",
        "text",
        "jaxgen/text/stop_strings.py",
        "end if self._keep else end - length",
        "end",
        ("tests/server/api/test_completions.py",),
    ),
    Fault(
        "character-broken-between-tokens",
        "text",
        "jaxgen/text/detokenizer.py",
        "self._whole = not (self._at_start or self._utf8.getstate()[0])",
        "self._whole = not self._at_start",
        (
            "tests/text/test_tokenizer.py::test_a_character_comes_out_whole_and_at_once",
            "tests/text/test_tokenizer.py::test_stream_joins_to_the_full_decode",
        ),
    ),
)

SERVER = (
    Fault(
        "any-beginning-of-a-key-opens",
        "server",
        "server/middleware/auth.py",
        "return sha256(key).digest()",
        "return sha256(key[:8]).digest()",
        ("tests/server/middleware/test_auth.py",),
    ),
    Fault(
        "callers-share-prefixes",
        "server",
        "server/api/endpoint.py",
        """f"{caller}/{body.cache_salt or ''}\"""",
        "body.cache_salt",
        ("tests/server/middleware/test_auth.py",),
    ),
    Fault(
        "events-come-twice-after-a-break",
        "server",
        "server/resume/event_ids.py",
        "        return count\n",
        "        return 0\n",
        ("tests/server/resume/test_resume.py::test_a_completion_goes_on",),
    ),
    Fault(
        "another-seed-after-a-break",
        "server",
        "server/api/endpoint.py",
        "services.identities.new() if last is None else last.ticket.identity",
        "services.identities.new()",
        ("tests/server/resume/test_resume.py::test_a_completion_goes_on",),
    ),
    Fault(
        "ids-go-for-every-key",
        "server",
        "server/resume/ticket.py",
        'b"jaxgen event id" + secret',
        'b"jaxgen event id"',
        ("tests/server/resume/test_resume.py",),
    ),
    Fault(
        "stream-without-its-end",
        "server",
        "server/api/choices_builder.py",
        "return [DONE]",
        "return []",
        ("tests/server/api/test_stream.py",),
    ),
    Fault(
        "usage-of-the-first-choice",
        "server",
        "server/api/response_builder.py",
        "sum(choice.num_tokens for choice in self.choices)",
        "sum(choice.num_tokens for choice in self.choices[:1])",
        ("tests/server/api/test_completions.py",),
    ),
    Fault(
        "choices-with-one-index",
        "server",
        "server/api/response_builder.py",
        "            index,\n            prompt,",
        "            j,\n            prompt,",
        ("tests/server/api/test_stream.py",),
    ),
    Fault(
        "queue-takes-one-more",
        "server",
        "server/generation/queue_limit.py",
        "count <= self._config.max_queued_requests // shares",
        "count <= self._config.max_queued_requests // shares + 1",
        ("tests/server/generation/test_queue_limit.py",),
    ),
    Fault(
        "escaped-quote-ends-a-string",
        "server",
        "server/tool_calls/reader.py",
        "quoted, escaped = char != '\"' or escaped,",
        "quoted, escaped = char != '\"',",
        ("tests/server/tool_calls/test_parser.py",),
    ),
    Fault(
        "time-between-tokens-from-arrival",
        "server",
        "server/metrics/metrics.py",
        "self._metrics.inter_token.observe(now - self._last)",
        "self._metrics.inter_token.observe(now - self._arrival)",
        ("tests/server/metrics/test_metrics.py",),
    ),
)

BATCHES = (
    Fault(
        "line-run-again-after-a-restart",
        "batches",
        "server/batches/store.py",
        "tuple(item for item in lines if item[0] not in done)",
        "tuple(lines)",
        ("tests/server/batches/test_batches.py",),
    ),
    Fault(
        "expired-batch-counts-as-completed",
        "batches",
        "server/batches/runner.py",
        'return "cancelled" if cancelled.done() else "expired"',
        'return "cancelled" if cancelled.done() else "completed"',
        ("tests/server/batches/test_batches.py",),
    ),
    Fault(
        "batches-of-other-callers",
        "batches",
        "server/batches/store.py",
        'row is None or owner not in (None, row["owner"])',
        "row is None",
        ("tests/server/batches/test_files.py",),
    ),
)
