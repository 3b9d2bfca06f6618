"""Run rows by name in this process, for a tool that watches it: alone.py dry|full FETCH,COMPUTE OUT NAME ..."""

import sys
from dataclasses import asdict, replace
from pathlib import Path

from scripts.gpu.rows.bench import Bench, Shared
from scripts.gpu.rows.listing import rows_of
from scripts.gpu.rows.sizes import DRY, FULL
from scripts.gpu.worker import guarded, prepare


def main() -> None:
    """Run the rows, and print the outcome of each."""
    size, registers, out, *names = sys.argv[1:]
    fetch, compute = map(int, registers.split(","))
    bench = Bench(DRY if size == "dry" else FULL, Shared(), (fetch, compute), {}, {}, Path(out))
    planned = {row.name: row for row in rows_of(bench.sizes)}
    for name in names:
        mine = replace(bench, registers=planned[name].registers or bench.registers)
        result = guarded(lambda name=name, mine=mine: asdict(prepare(name, mine)()))  # type: ignore[misc]
        print(name, result.get("why") or result["failure"] or "held", flush=True)


if __name__ == "__main__":
    main()
