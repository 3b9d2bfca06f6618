"""Rounds in which peers take turns, and a line of results for each server that was run."""

import os
import platform
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from jaxgen.hardware.device_info import this_cpu
from scripts.peers.agreement import answers
from scripts.peers.limits import measure_limits
from scripts.peers.load import Cell, Times, measure
from scripts.peers.peer import Peer, PeerError, Site
from scripts.peers.process import free_port, running
from scripts.peers.records import Records
from scripts.peers.shapes import Format


class Comparison:
    """Servers that take turns at the same loads, and the records of what they did."""

    def __init__(self, records: Records, site: Site, cells: Sequence[Cell], times: Times) -> None:
        self._records = records
        self._site = site
        self._cells = cells
        self._times = times

    def run(self, turns: Sequence[tuple[Peer, Format]], rounds: int) -> None:
        """All that the records do not have yet. Peers take turns, so that a change of the machine meets all of them;
        one that fails leaves a line that says so, and the others go on. Raises PeerError for another machine's records.
        """
        self._note_machine()
        for index in range(rounds):
            for peer, wanted in turns:
                about = {"round": index, "peer": peer.name, "format": wanted.name}
                if not self._is_measured(about):
                    print(f"round {index}, {wanted.name}, {peer.name}", flush=True)
                    self._try(peer, wanted, about)

    def _note_machine(self) -> None:
        cpu = this_cpu()
        here = {
            "cpu": cpu.title,
            "system": f"{platform.system()} {platform.machine()}",
            "threads": self._site.threads,
            "shape": self._site.shape,
        }
        known = self._records.of_kind("machine")
        if not known:
            self._records.add("machine", **here, limits=measure_limits(self._site))
        elif not self._records.of_kind("machine", **here):
            cpu_title, system, threads, shape = (known[-1][name] for name in here)
            raise PeerError(
                f"{self._records.path} is of {cpu_title}, {system}, {threads} threads, shape {shape}: give --results "
                "another file"
            )

    def _is_measured(self, about: dict[str, Any]) -> bool:
        """In all cells, and for as long."""
        times = {"warmup": self._times.warmup, "seconds": self._times.measured}
        return any(
            set(self._cells) <= {Cell.of(cell) for cell in line["cells"]}
            for line in self._records.of_kind("server", **about, **times)
        )

    def _try(self, peer: Peer, wanted: Format, about: dict[str, Any]) -> None:
        try:
            peer.prepare(self._site, wanted)
            found = self._measure(peer, wanted, about["round"])
        except Exception as error:  # whatever became of one server: the others are measured, and the command fails
            traceback.print_exc()
            self._records.add("failure", **about, error=f"{type(error).__name__}: {error}")
        else:
            self._records.add("server", **about, **found)

    def _measure(self, peer: Peer, wanted: Format, index: int) -> dict[str, Any]:
        started, port = datetime.now(UTC), free_port()
        log = self._site.log(f"{peer.name}-{self._site.shape}-{wanted.name}".replace(" ", "-"))
        with running(peer.launch(self._site, wanted, port), port, self._site.cores, log) as server:
            print(f"  ready after {server.start_seconds:.0f} s, load average {os.getloadavg()[0]:.1f}", flush=True)
            agreed = answers(peer, server)
            cells = []
            for number, cell in enumerate(self._cells):
                seed = 1000 * (index + 1) + 10 * number  # the same for all peers; no prompt comes twice to one
                found = measure(server.base_url, peer.usage, cell, self._times, seed)
                server.check()
                if found["failed"]:
                    raise PeerError(f"{cell.name}: {found['failed']} requests failed: {'; '.join(found['reasons'])}")
                if not found["completed"]:
                    raise PeerError(f"{cell.name}: no answer was complete after {self._times.patience:g} s")
                cells.append({**asdict(cell), **found})
                print(f"  {cell.name}: {summary(found)}", flush=True)
        return {
            "started": started.isoformat(timespec="seconds"),
            "warmup": self._times.warmup,
            "seconds": self._times.measured,
            "versions": peer.versions(self._site),
            "note": peer.note,
            "start_seconds": server.start_seconds,
            "peak_rss": server.peak_rss,
            "answers": agreed,
            "cells": cells,
        }


def summary(found: dict[str, Any]) -> str:
    """Figures of a cell in a line."""
    ttft, token = (
        " / ".join("-" if found[name][q] is None else f"{1e3 * found[name][q]:.1f}" for q in ("p50", "p95"))
        for name in ("ttft_s", "inter_token_s")
    )
    effective = " / ".join(f"{rate:.2f}" for rate in found["effective_per_s"].values())
    return (
        f"{found['output_tokens_per_s']:.0f} output tokens/s, TTFT {ttft} ms, inter-token {token} ms (P50 / P95); "
        f"effective {effective} requests/s; "
        f"{found['completed']} answers, {found['wrong_lengths']} of the wrong length"
    )
