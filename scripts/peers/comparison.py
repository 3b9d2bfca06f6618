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
from scripts.peers.load import Times
from scripts.peers.loads.load import Load
from scripts.peers.peer import Peer, PeerError, Site
from scripts.peers.process import free_port, running
from scripts.peers.records import Records
from scripts.peers.shapes import Format


class Comparison:
    """Servers that take turns at the same loads, and the records of what they did."""

    def __init__(self, records: Records, site: Site, loads: Sequence[Load], times: Times) -> None:
        self._records = records
        self._site = site
        self._loads = loads
        self._times = times

    def run(self, turns: Sequence[tuple[Peer, Format]], rounds: int) -> None:
        """All that the records do not have yet. Peers take turns, so that a change of the machine meets all of them;
        one that fails leaves a line that says so, and the others go on. Raises PeerError for another machine's records.
        """
        self._note_machine()
        for index in range(rounds):
            for peer, wanted in turns:
                key = {"round": index, "peer": peer.name, "format": wanted.name}
                if not self._is_measured(key):
                    print(f"round {index}, {wanted.name}, {peer.name}", flush=True)
                    self._try(peer, wanted, key)

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

    def _is_measured(self, key: dict[str, Any]) -> bool:
        """Under all loads, and for as long."""
        times = {"warmup": self._times.warmup, "seconds": self._times.measured}
        return any(
            all(any(asdict(load).items() <= cell.items() for cell in line["cells"]) for load in self._loads)
            for line in self._records.of_kind("server", **key, **times)
        )

    def _try(self, peer: Peer, wanted: Format, key: dict[str, Any]) -> None:
        try:
            peer.prepare(self._site, wanted)
            figures = self._measure(peer, wanted, key["round"])
        except Exception as error:  # whatever became of one server: the others are measured, and the command fails
            traceback.print_exc()
            self._records.add("failure", **key, error=f"{type(error).__name__}: {error}")
        else:
            self._records.add("server", **key, **figures)

    def _measure(self, peer: Peer, wanted: Format, index: int) -> dict[str, Any]:
        started, port = datetime.now(UTC), free_port()
        log = self._site.log(f"{peer.name}-{self._site.shape}-{wanted.name}".replace(" ", "-"))
        with running(peer.launch(self._site, wanted, port), port, self._site.cores, log) as server:
            print(f"  ready after {server.start_seconds:.0f} s, load average {os.getloadavg()[0]:.1f}", flush=True)
            # A real vocabulary: llama.cpp answers with texts, and a token may be a part of a character.
            agreed = answers(peer.tokens, server) if self._site.tokenizer is None else []
            cells = []
            for number, load in enumerate(self._loads):
                seed = 1000 * (index + 1) + 10 * number  # the same for all peers; no prompt comes twice to one
                figures = load.measure(server.base_url, peer, self._times, seed)
                server.check()
                if figures["failed"]:
                    raise PeerError(
                        f"{load.name}: {figures['failed']} requests failed: {'; '.join(figures['reasons'])}"
                    )
                if not figures["completed"]:
                    raise PeerError(f"{load.name}: no answer was complete after {self._times.patience:g} s")
                cells.append({**asdict(load), **figures})
                print(f"  {load.name}: {load.summary(figures)}", flush=True)
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
