"""docs/grafana-dashboard.json: every metric in it exists, and every metric of ours is in it or left out knowingly."""

import json
import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from jaxgen.core.service_class import ServiceClass
from jaxgen.core.stats import (
    EngineStats,
    KindStats,
    KVEventStats,
    KVTierStats,
    OffloadStats,
    SnapshotStats,
    SpeculationStats,
)
from jaxgen.server.config import ServerConfig
from tests.support.paths import ROOT
from tests.support.server_app import body, client_of, fake_engine

PAGE = ROOT / "docs" / "grafana-dashboard.json"

LEFT_OUT = {
    "jaxgen_kernels_info": "says what steps are made of, once",
    "jaxgen_cache_config_info": "for routers, of what never changes",
    "jaxgen_cache_leaks_total": "zero unless jaxgen has a fault: docs/operations.md has the alert",
    "jaxgen_num_prompt_characters_waiting": "zero unless somebody sends very long texts",
    "jaxgen_kv_cache_blocks_cached": "in kv_cache_blocks_by_state",
    "jaxgen_offload_host_evictions_total": "goes with the blocks in host memory, which are full then",
    "jaxgen_offload_idle_seconds_total": "for those who tune a streamed cache",
    "jaxgen_offload_planned_project_total": "plans are for those who tune them; the board has what was done",
    "jaxgen_offload_planned_recompute_total": "as above",
    "jaxgen_offload_planned_restore_total": "as above",
    "jaxgen_offload_predicted_seconds_total": "as above",
    "jaxgen_offload_restore_seconds_total": "as above",
    "jaxgen_offload_recomputes_total": "as above",
    "jaxgen_offload_restored_input_bytes_total": "part of restored_bytes",
    "jaxgen_offload_restores_total": "the board has tokens and bytes",
    "jaxgen_offload_saved_blocks_total": "the board has bytes",
    "jaxgen_state_snapshots": "for those who size the cache of a model with states",
    "jaxgen_state_snapshots_max": "as above",
    "jaxgen_state_snapshots_taken_total": "as above",
    "jaxgen_state_snapshots_evicted_total": "as above",
    "jaxgen_state_recomputed_total": "as above",
    "jaxgen_offload_host_snapshots": "as above",
    "jaxgen_offload_saved_snapshots_total": "as above",
    "jaxgen_offload_lost_snapshots_total": "as above",
    "jaxgen_offload_restored_snapshots_total": "as above",
    "jaxgen_spec_decode_num_drafts_total": "for those who tune drafts",
    "jaxgen_spec_decode_num_accepted_tokens_per_pos_total": "as above",
    "jaxgen_kv_tier_compared_blocks_total": "the board has those that differ",
    "jaxgen_kv_tier_read_bytes_total": "the board has blocks",
    "jaxgen_kv_tier_read_seconds_total": "for those who tune a KV tier",
    "jaxgen_kv_tier_written_bytes_total": "the board has blocks",
    "jaxgen_kv_event_batches_total": "for those whose router reads them",
    "jaxgen_kv_event_dropped_batches_total": "as above",
}


def offered() -> set[str]:
    """The names that a server with everything on has samples of."""
    config = ServerConfig(service_classes=(ServiceClass(name="priority", first_token_seconds=1.0),))
    kinds = (KindStats(name="full"), KindStats(name="window 16"))
    of_host: dict[str, Any] = {"offload": OffloadStats(), "kv_tier": KVTierStats(), "kv_events": KVEventStats()}
    of_drafts: dict[str, Any] = {"speculation": SpeculationStats(accepted_by_place=(2, 1))}
    numbers = EngineStats(block_size=16, kinds=kinds, snapshots=SnapshotStats(), **of_host, **of_drafts)
    with client_of(fake_engine(numbers=numbers), config) as client:
        client.post("/v1/completions", json=body())
        text = client.get("/metrics").text
    names = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    return {name for name in names if not name.endswith(("_created", "_count", "_sum"))}


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PAGE.read_text(encoding="utf-8"))
    return found


def targets() -> list[dict[str, Any]]:
    return [target for panel in board()["panels"] for target in panel.get("targets", [])]


def test_every_metric_is_on_the_board_or_left_out() -> None:
    shown = set(re.findall(r"jaxgen_\w+", PAGE.read_text(encoding="utf-8")))
    assert shown - offered() == set()
    assert offered() - shown == set(LEFT_OUT)


def test_every_metric_that_a_page_names_exists() -> None:
    pages = [PAGE.parent.parent / "README.md", *PAGE.parent.glob("*.md")]
    # A family's name ends where the page goes on with a star.
    named = {name for page in pages for name in re.findall(r"\bjaxgen_[a-z0-9_]*[a-z0-9]\b", page.read_text("utf-8"))}
    of_batches = {name for name in named if name.startswith("jaxgen_batch_lines_")}  # those of a server with batches
    assert named - offered() == of_batches
    assert len(named) > 10


def test_every_panel_asks_the_chosen_source() -> None:
    variables = {variable["name"]: variable for variable in board()["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert all(target["datasource"]["uid"] == "${datasource}" for target in targets())
    used = {name for target in targets() for name in re.findall(r"\$(\w+)", target["expr"])}
    assert used == {"model", "__rate_interval"}
    assert "model" in variables
    for target in targets():
        assert target["expr"].count("(") == target["expr"].count(")"), target["expr"]
        assert target["expr"].count("{") == target["expr"].count("}"), target["expr"]


def test_panels_do_not_overlap() -> None:
    board_ = board()
    taken: set[tuple[int, int]] = set()
    for panel in board_["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in board_["panels"]}) == len(board_["panels"])


def test_legends_name_labels_that_exist() -> None:
    for target in targets():
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            by = re.search(r"by \(([\w, ]+)\)", target["expr"])
            assert by is not None
            assert label in by[1].split(", ")
