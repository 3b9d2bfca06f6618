"""What the page says beside its figures."""

INTRO = """# Schedulers in virtual time

Made by `python -m scripts.simulation` from docs/results/simulation*.json:

```sh
.venv/bin/python -m scripts.simulation                        # FastGen's benchmark: minutes; this page and its plots
.venv/bin/python -m scripts.simulation --trace FILE           # a trace of your own, its figures as JSON
.venv/bin/python -m scripts.simulation --check [--model DIR]  # predictions against live runs on this machine
```

The scheduler is the server's own (`jaxgen/scheduling`); a model of what a step costs stands for the device.
The loop is an accelerator's engine's: a plan is made while the one before it is in flight, then that one is completed
(on a CPU, and for the curve of [tuning.md](tuning.md#where-padding-costs-nothing), a plan follows the end of the one
before). Time is a number that jumps from event to event, so a run of an hour takes seconds and comes out the same every
time. Planning takes no time, a step's time depends on its tokens and on what they attend to alone, and nothing is found
in a prefix cache. So a step costs what its own tokens do, as in FastGen's engine. Where a device computes the padding
of a step too (docs/tuning.md), jaxgen's steps that are not full cost what full ones do, unless they are narrow: there
the shares of requests in time at light loads are too good.

A trace has a line of JSON for each request: `{"arrival": 0.5, "prompt_tokens": 900, "output_tokens": 40}`, seconds and
tokens. It may name `tenant`, `tenant_weight` and `priority`, and have a `service` class such as `{"name": "fast",
"first_token_seconds": 2, "inter_token_seconds": 0.2}` (`jaxgen/core/service_class.py`). Where these differ, the figures
of each class and the tokens of each tenant are told apart; `kept` counts the requests of a class that got what it
promises. Figures are those of `jaxgen benchmark` ([benchmark.md](benchmark.md)). [scale.md](scale.md) has several
schedulers behind a router.

Three schedulers are compared:

- **SplitFuse**: the server's, with 768 tokens a step (FastGen's), 512 sequences.
- **prompt-first**: steps of whole prompts come first, decodes wait meanwhile; 4,096 tokens of prompts a step, or one
  longer prompt, as vLLM of November 2023 took with Llama 2: max(max_model_len, 2048). No sequence is preempted.
- **static**: the same, but nothing begins before all that began together have ended; batches of 32 at most.

The load is FastGen's (arXiv 2401.08671): 512 requests in a closed loop, lengths Normal with a standard deviation of 30
% of the mean. Effective throughput counts requests whose first token came within prompt tokens / 512 s and the moving
average (span 16) of whose inter-token times stayed under 1 / SLA. Blocks are of 64 tokens, as many as 80 GiB on each
GPU leave beside the weights in 16 bits, less 1e9 bytes, which is how FastGen takes them.
"""

COSTS = """## What a step costs

F: read by eye off the plots of FastGen's publication. The larger steps' times are those of its plot of latency over
tokens; those of 64, 128 and 384 tokens follow from its plot of throughput over tokens, relative to 256.
"""

DIFFERENCES = """In the columns of settings: SplitFuse, prompt-first: **ratio**. "-": the curve does not get there.

**Whose points these are.** The publication does not name the model and GPU of the points. 768 tokens in 93 ms on four
A100 would be 285 TFLOP/s on each with 69 billion parameters (2 FLOPs for each token and parameter), 91 % of their
peak, while the other plot's peak is 215 TFLOP/s. With 13 billion parameters on one A100 they are 215 TFLOP/s, and 209
at 2,048 tokens, where that plot has 208 at 1,024. So by arithmetic they are most likely those of Llama-2-13B on one
A100-80G, and as 70B's (*points*) they are half of what 70B took. Hence the other two settings:

- *13b* has the same points with the cache of 13B on one A100.
- *calibrated* has a line through two of FastGen's own token latencies at 16 clients, 2600 + 128 tokens (F): P50, 0.07
  s, for a step of 16 decodes, and P95, 0.19 s, for one of 768 tokens. What FastGen took beside the forward pass
  (planning, sampling, passing tokens between processes) is so in every step. **Those two figures are put in, so they
  come out**; all others of that column are predictions, and so is everything of prompt-first, which runs at the same
  costs.

**What is reproduced.** With *calibrated* costs, prompt-first's token latencies at P90 and P95 (0.39 and 0.57 s,
published 0.385 and 0.695); its effective throughput at an SLA of 4 and how many clients and failures that takes (0.68
requests/s at 6 clients, 23 % fail; published 0.63 at 6, 28 %); SplitFuse's (1.47; published 1.42). With the points as
they are, the ratio of P95 token latencies (0.27), that of effective throughputs at an SLA of 6 (2.0), and as 13B's
those of throughput and latency at 32 clients. SplitFuse is ahead at every SLA.

**What is not.**

- Effective throughput's ratio at an SLA of 4 is 2.2 (*calibrated*), not 2.3: vLLM had costs of its own beside the
  forward pass, which nothing here charges to prompt-first, and FastGen fewer late first tokens than 10 % at the peak.
- Twice the throughput at a latency of 9 s is not reproduced: 1.05 to 1.1. At equal costs of a step both schedulers
  compute the same tokens, and what SplitFuse saves is the steps of decodes beside which prompts could have run.
  Published requests/s of vLLM at the same clients are lower than prompt-first's here: that is the implementation, not
  the policy.
- With *calibrated* costs and 2600 + 60 tokens, prompt-first has the higher throughput from 32 clients on: what a step
  costs beside its tokens SplitFuse pays for every 768 tokens of a prompt, prompt-first for every 4,096. FastGen's
  figures do not show that, so part of what is calibrated as a cost of each step must have been a cost of tokens.
- As 70B's, the points give 2.1 times the published throughput, for the reason above. As 13B's they give 1.35 times: no
  attention to the context, no sampling, no planning and no HTTP are in them.
- Static batching was not published; its token latencies are smooth since no prompt ever interrupts, and its first
  tokens are late, which is why so little of it is effective.
"""

CHECK = """## Against live runs

`--check` runs an engine in process (no HTTP) on this machine and keeps what each step computed and took. To one load,
waves of 1 to 16 requests of 400 + 50 tokens on average, it fits seconds = base + tokens + positions + contexts, for
the wide and the narrow program apart, to means of up to eight steps in a row; positions are tokens that others of a
prompt attend to, contexts those that decodes attend to.
Simulated steps take the fitted time, multiplied by measured over fitted of some step of that load, drawn at random: so
the machine's own unrest is in the prediction. Then other loads are predicted and run, of which no step is in the fit.
The fitted load runs before and after each of them, since a shared machine's speed changes. Cells: predicted, measured
(median error of the rounds). 88m is what `python -m scripts.make.random_model` makes.
"""

NOT_CHECKED = "**Not measured yet.**"
