"""What is known of an NVIDIA GPU's software without opening the GPU."""

from types import SimpleNamespace

import pytest

from jaxgen.hardware import nvidia


def test_versions_of_libraries_are_those_that_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> int:
        raise RuntimeError("cuDNN not found.")

    of_plugin = SimpleNamespace(cublas_get_version=lambda: 130100, cudnn_get_version=missing)
    monkeypatch.setattr(nvidia, "plugin", lambda: 13)
    monkeypatch.setattr(nvidia, "ptxas", lambda: (13, 0, 88))
    monkeypatch.setattr(nvidia, "import_module", {"jax_cuda13_plugin._versions": of_plugin}.__getitem__)
    assert nvidia.libraries() == {"ptxas": "13.0.88", "cublas": "130100"}


def test_without_a_plugin_there_are_no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "plugin", lambda: None)
    assert nvidia.libraries() == {}
