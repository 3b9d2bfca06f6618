"""Texts of the pages of comparisons."""

TERMS = """
## Terms and load

A *client* sends a request, reads the whole completion, and sends the next request. Prompts have {prompt} and
completions {completion} tokens on average.

- *TTFT* is the time to the first token. A *gap* is the time between two tokens of a completion. Times are in ms.
  P50 is the median, and 95 % of the values are below P95.
- *Requests/s within targets* is FastGen's effective throughput ([benchmark.md](benchmark.md#results)). It counts
  requests that start in the measured window. The first token must come within prompt tokens / 512 s, and later tokens
  at the SLA or faster. The SLA is 4 tokens/s above. Below it is 2, 4 and 6. One number stands for three equal ones.
- *jaxgen over it* is jaxgen's tokens/s over the server's. Figures are medians of the rounds. A ratio is the median of
  the rounds' ratios, with the least and the greatest. So it is not a quotient of two other columns.
- Prompts are token ids, and no two are alike. Decoding is greedy and ignores EOS. So all servers compute the same
  number of tokens.
- A library without an HTTP server has a *small server* in front of it (scripts/peers/token_server.py). It neither
  validates requests nor makes text, as real servers must.
- Other pages: [1B, also in 8 and 4 bits](peers-1b.md), [conversations](peers-agents-88m.md),
  [JSON schemas](peers-schemas-88m-smollm2.md), [GPUs](peers-gpu.md).
- jaxgen weighs early first tokens against short gaps. `--inter-token-target` makes gaps shorter
  ([tuning.md](tuning.md#where-padding-costs-nothing), [plots](reports/2026-11-26-token-budgets.md)).
"""
ELSEWHERE = "[peers.md](peers.md#terms-and-load) explains the terms and the load."
OPEN_LOOPS = (
    "Requests arrive by a Poisson process, whether earlier ones have ended or not. The last column compares requests/s "
    "within targets."
)
LONG_PROMPTS = (
    "Long prompts have completions of {answer} tokens. Only their own column counts them. The last column is the "
    "server's P95 gap over jaxgen's."
)
ROUNDING = {
    "jaxgen": "jaxgen: `jaxgen serve --quantization`.",
    "OpenVINO GenAI": "OpenVINO GenAI: `optimum-cli export openvino --weight-format`. 8 bits are by channel and "
    "asymmetric. 4 bits are in groups of 128 and asymmetric, with the output layer in 8 bits.",
    "llama.cpp": "llama.cpp: `llama-quantize`, in blocks of 32: Q8_0 and Q4_0. With 4 bits the tied output layer is in "
    "Q6_K.",
}
"""How each server's own tool makes weights of 8 and 4 bits, with its defaults."""
