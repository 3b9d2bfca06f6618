"""Texts of the pages of comparisons."""

TERMS = """
## Terms and load

A *client* sends a request, reads the whole completion, and sends the next request. Prompts have {prompt} and
completions {completion} tokens on average.

- *TTFT* is the time to the first token. A *gap* is the time between two tokens of a completion. Times are in ms.
  P50 is the median, and 95 % of the values are below P95. A dash: there is no value, or too many requests got no token.
- *Requests/s within targets* counts requests that start in the measured window and meet two targets. The first token
  comes within 1 s for each 512 tokens of the prompt. After that, at least 4 tokens come each second
  ([benchmark.md](../benchmark.md#results) calls this *effective*, with an SLA of 4 tokens/s).
- Figures are medians of the *rounds*. The last column is jaxgen's lead over the row's server. In brackets: the least
  and the greatest lead in a single round.
- Some loads add *long prompts* with completions of {answer} tokens. They count only in the column *long prompts'
  tokens/s*, when their first token comes. If fewer come than arrive, the server could not keep up. If more, earlier
  ones had waited.
- Prompts are token ids, and no two are alike. Decoding is greedy and ignores EOS.
- A library without an HTTP server has a *small server* in front of it (scripts/peers/token_server.py). It neither
  validates requests nor makes text. So OpenVINO GenAI's figures are a little too good.
- Other pages: [1B, also in 8 and 4 bits](peers-1b.md), [conversations](peers-agents-88m.md),
  [JSON schemas](peers-schemas-88m-smollm2.md), [GPUs](peers-gpu.md).
- jaxgen weighs early first tokens against short gaps. `--inter-token-target` makes gaps shorter
  ([tuning.md](../tuning.md#where-padding-costs-nothing), [plots](../reports/2026-11-26-token-budgets.md)).
"""
ELSEWHERE = "[peers.md](peers.md#terms-and-load) explains the terms and the load."
OPEN_LOOPS = (
    "Requests come at random times (a Poisson process), whether earlier ones have ended or not. *Planned/s* is the "
    "mean of that process, and *came/s* is what came in the measured window."
)
TURNS = "**Rounds.** The servers took turns; the column *rounds* says how often."
SETTINGS = {
    "vLLM": "vLLM had `--max-num-seqs 64`, a KV cache of 4 GiB (`VLLM_CPU_KVCACHE_SPACE`) and a thread bound to each "
    "core. All other settings were its defaults.",
}
"""How servers were started that have many settings."""
ONE_FILE = (
    "Both servers read the same GGUF file, which `scripts.make.random_gguf` makes: random blocks of its type. The "
    "output layer of Q4_0 is in Q6_K."
)
ROUNDING = {
    "jaxgen": "jaxgen: `jaxgen serve --quantization`.",
    "OpenVINO GenAI": "OpenVINO GenAI: `optimum-cli export openvino --weight-format`. 8 bits are by channel and "
    "asymmetric. 4 bits are in groups of 128 and asymmetric, with the output layer in 8 bits.",
    "llama.cpp": "llama.cpp: `llama-quantize`, in blocks of 32: Q8_0 and Q4_0. With 4 bits the tied output layer is in "
    "Q6_K.",
}
"""How each server's own tool makes weights of 8 and 4 bits, with its defaults."""
