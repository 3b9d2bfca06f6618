"""Format what a server does, other formats and restores as tables in Markdown."""

from typing import Any

from scripts.gpu.cells import (
    Result,
    billed_seconds,
    detail,
    detail_ms,
    floor,
    fraction,
    ms,
    ms_of,
    number,
    state,
    table,
)
from scripts.gpu.sizes import FULL


def server(result: Result) -> str:
    load, rows = FULL.server, []
    for clients, _ in load.clients:
        row = result.row(f"server_{load.name}_{clients}_clients")
        found = row.get("detail", {})
        cells = [state(row) or number(found["output_tokens_per_s"]), number(found.get("requests_per_s"))]
        spreads = (found.get("ttft_s", {}), found.get("inter_token_s", {}))
        times = [ms_of(spread.get(point)) for spread in spreads for point in ("p50", "p95")]
        rows.append([str(clients), *cells, *times])
    titles = ["first token, ms, P50", "P95", "between tokens, ms, P50", "P95"]
    clients_table = table(["clients", "output tokens/s", "requests/s", *titles], rows)
    notes = []
    for title, suffix in (("The first start", "start"), ("a second one", "start_again")):
        row = result.row(f"server_{load.name}_{suffix}")
        cached = f", with {row['detail']['cached_programs']} programs in its cache" if state(row) is None else ""
        notes.append(f"{title} takes {state(row) or number(row['seconds'])}{'' if state(row) else ' s'}{cached}")
    about = f"Prompts of {load.prompt} tokens, answers of {load.answer} (means), random weights of Llama-3-8B's shape:"
    return f"{about}\n\n{clients_table}\n\n{'; '.join(notes)}."


def formats(result: Result) -> str:
    rows = []
    for load in (*FULL.variants, FULL.moe_step):
        for budget in load.budgets:
            row = result.row(f"step_{load.name}_{budget}")
            rows.append(_format(f"step_{load.name}_{budget}", row))
    other = f"step_{FULL.whole_sums}_{FULL.variants[0].budgets[0]}_whole_sums"
    rows.append(_format(other, result.row(other)))
    steps = table(["step", "kernels", "time, ms", "by its bill, ms", "floor, ms", "floor / time"], rows)
    rows = []
    for one in FULL.expert_loads:
        row = result.row(f"expert_product_{one.name}")
        cells = [detail(row, "kernels"), ms(row), fraction(row), detail_ms(row, "loop_seconds")]
        rows.append([f"`expert_product_{one.name}`", *cells])
    experts = table(["product of experts", "kernels", "time, ms", "floor / time", "XLA's loop, ms"], rows)
    return f"{steps}\n\n{experts}"


def _format(name: str, row: dict[str, Any]) -> list[str]:
    times = [ms(row), ms_of(billed_seconds(row)), floor(row), fraction(row)]
    return [f"`{name}`", detail(row, "kernels"), *times]


def restored(result: Result) -> str:
    name, rows = f"restore_{FULL.steps.name}_{FULL.restored_tokens}", []
    row = result.row(name)
    for title in ("transfer", "recompute", "plan"):
        rows.append([title, state(row) or detail_ms(row, f"{title}_seconds")])
    return table([f"an offloaded context of {FULL.restored_tokens:,} tokens", "first token after, ms"], rows)
