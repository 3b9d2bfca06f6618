"""Run the engine inside a program, without a server: complete prompts, stream one, and embed two.

Run ``.venv/bin/python examples/llm_class.py`` in the environment that ``scripts/serve`` makes. With no argument it
takes the embedded model; its argument is the directory or hub id of another one.
"""

import asyncio
import sys

from jaxgen import LLM, SamplingParams

GREEDY = SamplingParams(max_tokens=24, temperature=0.0)


async def show(llm: LLM, prompt: str) -> None:
    async for piece in llm.stream(prompt, GREEDY):
        print(piece, end="", flush=True)
    print()


def main() -> None:
    with LLM(sys.argv[1] if len(sys.argv) > 1 else None) as llm:
        prompts = ["def main():", "import "]
        for prompt, completion in zip(prompts, llm.generate(prompts, GREEDY), strict=True):
            print(repr(prompt), "->", repr(completion.text), completion.finish_reason.value)
        print("--- streamed")
        asyncio.run(show(llm, prompts[0]))
        vectors = llm.embed(prompts)
        print("--- cosine of the two prompts' embeddings:", round(float(vectors[0] @ vectors[1]), 3))


if __name__ == "__main__":
    main()
