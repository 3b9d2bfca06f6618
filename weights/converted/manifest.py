"""Write, read and verify ``jaxgen.json``: a converted directory's family, dtype and formats of weights, and the size
and SHA-256 of each file. Host only, no jax."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.core.mixed_weight import AnyFormat, MixedFormat, Part, PartFormat
from jaxgen.core.model_config import DTYPES, DType
from jaxgen.core.plain_weight import PlainFormat
from jaxgen.core.quantization import FLOATS, PLANES, SCALE_DTYPES, WeightFormat
from jaxgen.files.text_files import check_not_pointer
from jaxgen.weights.files.checksums import checksums_of
from jaxgen.weights.files.file_names import CONFIG
from jaxgen.weights.files.model_files import ModelFiles

MANIFEST = "jaxgen.json"
FORMAT_VERSIONS = (1, 2, 3, 4, 5)
"""Version of the directory. Earlier versions of jaxgen cannot read a directory with what a version adds.

2: quantized weights. 3: minimums, blocks, or scales in float16. 4: layers or outputs in different formats.
5: numbers among them.
"""
_SINCE_3 = ("minimums", "blocks")
_NUMBERS = "numbers"
"""The field of parts without codes: their dtype."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size in bytes and SHA-256 in hexadecimal of a file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``jaxgen.json``. ``files``: all but the manifest, by path relative to the directory.

    ``formats``: those of the quantized parameters, by path.
    """

    family: str
    dtype: DType
    files: Mapping[str, FileRecord]
    formats: Mapping[str, AnyFormat]


def is_converted(directory: Path) -> bool:
    """Whether the directory is a complete conversion: its manifest is the last file to be written."""
    return (directory / MANIFEST).is_file()


def write_manifest(
    directory: Path, family: str, dtype: DType, formats: Mapping[str, AnyFormat], *, progress: bool = True
) -> None:
    """Write the manifest, with every file that is in the directory now."""
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    sums = checksums_of(directory, names, "computing checksums", progress)
    files = {name: FileRecord((directory / name).stat().st_size, sums[name]) for name in names}
    (directory / MANIFEST).write_text(manifest_text(family, dtype, files, formats), encoding="utf-8")


def manifest_text(family: str, dtype: DType, files: Mapping[str, FileRecord], formats: Mapping[str, AnyFormat]) -> str:
    """Return what a manifest has."""
    data: dict[str, Any] = {"format_version": 1, "family": family, "dtype": dtype}
    data["files"] = {name: asdict(record) for name, record in files.items()}
    if formats:
        data |= {
            "format_version": max(_version(form) for form in formats.values()),
            "weight_formats": {path: _entry(form) for path, form in formats.items()},
        }
    return json.dumps(data, indent=1) + "\n"


def read_manifest(files: ModelFiles) -> Manifest:
    """Read the manifest of a converted directory. Raises ConfigError when it is damaged or of another version."""
    data, path = files.read_json(MANIFEST), files.directory / MANIFEST
    if data.get("format_version") not in FORMAT_VERSIONS:
        raise ConfigError(
            f"{path}: format_version is {data.get('format_version')!r} and this version reads "
            f"{' and '.join(map(str, FORMAT_VERSIONS))}; convert the checkpoint again"
        )
    if data.get("dtype") not in DTYPES:
        raise ConfigError(f"{path}: dtype is {data.get('dtype')!r}; it must be one of {', '.join(DTYPES)}")
    try:
        records = {str(name): _record(entry) for name, entry in data["files"].items()}
        formats = {str(name): _format(entry) for name, entry in data.get("weight_formats", {}).items()}
        return Manifest(str(data["family"]), data["dtype"], records, formats)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path} is damaged ({error!r}); convert the checkpoint again") from error


def manifest_of(files: ModelFiles, family: str) -> Manifest:
    """Read the manifest of a converted directory whose config.json means ``family``. Raises ConfigError."""
    manifest = read_manifest(files)
    if manifest.family != family:
        raise ConfigError(f"{files.directory / MANIFEST}: family is {manifest.family!r}, but {CONFIG} means another")
    return manifest


def verify(files: ModelFiles, manifest: Manifest, *, checksums: bool = True, progress: bool = True) -> None:
    """Compare the files' sizes, and checksums if ``checksums``. Raises ConfigError that names the first difference."""
    for name, record in manifest.files.items():
        path = files.path(name)
        if not path.is_file():
            raise ConfigError(f"{path} is missing, but {MANIFEST} names it; copy or convert the checkpoint again")
        if (size := path.stat().st_size) != record.size:
            check_not_pointer(path)
            raise ConfigError(
                f"{path} has {size} bytes, but {MANIFEST} says {record.size}; copy or convert the checkpoint again"
            )
    if not checksums:
        return
    for name, sha256 in checksums_of(files.directory, manifest.files, "verifying checksums", progress).items():
        if sha256 != manifest.files[name].sha256:
            raise ConfigError(
                f"{files.directory / name} is corrupt: its SHA-256 is not the one in {MANIFEST}; "
                f"copy or convert the checkpoint again"
            )


def _record(entry: Any) -> FileRecord:
    if not isinstance(entry["size"], int) or not isinstance(entry["sha256"], str):
        raise TypeError(entry)
    return FileRecord(entry["size"], entry["sha256"])


def _version(form: AnyFormat) -> int:
    """Return the first version of directories that may have a format."""
    if isinstance(form, MixedFormat):
        return 5 if form.plain_layers else 4
    is_new = form.minimums or form.blocks or form.bits not in (4, 8) or form.scale_dtype == "float16"
    return 3 if is_new else 2


def _entry(form: AnyFormat) -> dict[str, Any]:
    """Return the fields of a format; fields that came with version 3 are left out if false."""
    if isinstance(form, MixedFormat):
        kinds = [[{"format": _part_entry(part.form), "outputs": part.outputs} for part in kind] for kind in form.kinds]
        return {"kinds": kinds, "layers": form.layers}
    return {name: value for name, value in asdict(form).items() if value or name not in _SINCE_3}


def _part_entry(form: PartFormat) -> dict[str, Any]:
    return {_NUMBERS: form.dtype} if isinstance(form, PlainFormat) else _entry(form)


def _part_format(entry: Any) -> PartFormat:
    if _NUMBERS not in entry:
        return _one_format(entry)
    if entry.keys() != {_NUMBERS} or entry[_NUMBERS] not in DTYPES:
        raise ValueError(entry)
    return PlainFormat(entry[_NUMBERS])


def _format(entry: Any) -> AnyFormat:
    if "kinds" not in entry:
        return _one_format(entry)
    kinds = tuple(
        tuple(Part(_part_format(part["format"]), int(part["outputs"])) for part in kind) for kind in entry["kinds"]
    )
    layers = tuple(map(int, entry["layers"]))
    if (
        entry.keys() != {"kinds", "layers"}
        or set(layers) != set(range(len(kinds)))
        or len({sum(part.outputs for part in kind) for kind in kinds}) != 1
    ):
        raise ValueError(entry)
    return MixedFormat(kinds, layers)


def _one_format(entry: Any) -> WeightFormat:
    form = WeightFormat(**entry)
    known = form.bits in (FLOATS if form.floats else PLANES) and form.scale_dtype in SCALE_DTYPES
    if not known or sum((form.floats, form.zeros, form.minimums)) > 1 or (form.floats and form.blocks):
        raise ValueError(entry)
    if form.blocks and (form.group is None or form.scale_dtype != "float16"):
        raise ValueError(entry)
    if not (form.group is None or (isinstance(form.group, int) and form.group > 0)):
        raise ValueError(entry)
    return form
