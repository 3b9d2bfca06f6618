"""Keep the KV cache of earlier prompts in host memory, and see it found there again.

The cache below holds one long prompt. A second one pushes the first out of it, into host memory
(``kv_offloading_size``, in GiB), and the first comes back from there when it is asked for again. Run
``.venv/bin/python examples/offload.py`` in the environment that ``scripts/serve`` makes. A server does the same with
``scripts/serve --kv-offloading-size 1 --num-blocks 24`` and counts it in ``jaxgen_offload_host_hits_total`` at
``/metrics``.
"""

from jaxgen import LLM, SamplingParams

PARAMS = SamplingParams(max_tokens=8, temperature=0.0)
FIRST = "".join(f"first_{i} = {i}\n" for i in range(48))
SECOND = "".join(f"second_{i} = {i}\n" for i in range(48))


def main() -> None:
    with LLM(max_model_len=512, block_size=32, num_blocks=16, kv_offloading_size=0.1) as llm:
        answers = []
        for name, prompt in (("first", FIRST), ("second", SECOND), ("first again", FIRST)):
            answers.append(llm.generate([prompt], PARAMS)[0].tokens)
            stats = llm.engine.stats().offload
            assert stats is not None, "kv_offloading_size asks for it"
            print(
                f"{name}: {stats.saved_blocks} blocks saved, {stats.host_hit_tokens} tokens found in host memory, "
                f"{stats.planned_restore_tokens} to copy back, {stats.planned_recompute_tokens} to compute again"
            )
        print("the same answer twice:", answers[0] == answers[2])


if __name__ == "__main__":
    main()
