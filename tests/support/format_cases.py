"""The formats of checkpoints that are read: how each is configured and written, and the form that is kept of it."""

from functools import partial
from typing import Any

import numpy as np

from jaxgen.core.quantization import WeightFormat
from tests.support.quantised_cases import AWQ, FP8, GPTQ, Encode, compressed, encoding, fp4, fp8, mxfp8
from tests.support.quantised_checkpoints import BFLOAT16, POWERS, awq, gptq, int8, pack_quantized

_V1, _V2 = GPTQ, GPTQ | {"checkpoint_format": "gptq_v2"}
OF_GROUP = WeightFormat(4, 16, "float32", zeros=True)
INTEGERS: dict[str, tuple[dict[str, Any], Encode, WeightFormat]] = {
    "gptq v1": (_V1, encoding(gptq), OF_GROUP),
    "gptq v2": (_V2, encoding(gptq, version=2), OF_GROUP),
    "gptq symmetric": (_V1 | {"sym": True}, encoding(gptq, symmetric=True), WeightFormat(4, 16, "float32")),
    "gptq one group": (_V1 | {"group_size": -1}, encoding(gptq, group=0), WeightFormat(4, None, "float32", zeros=True)),
    "gptq 8 bits": (_V1 | {"bits": 8}, encoding(gptq, bits=8), WeightFormat(8, 16, "float32", zeros=True)),
    "gptq in an order": (
        _V1 | {"desc_act": True},
        encoding(gptq, inputs="shared"),
        WeightFormat(4, 16, "float32", zeros=True, ordered=True),
    ),
    "gptq with an order that is none": (_V1 | {"desc_act": True}, encoding(gptq), OF_GROUP),
    "auto-round of GPTQ": (
        GPTQ | {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "data_type": "int"},
        encoding(gptq),
        OF_GROUP,
    ),
    "auto-round of GPTQ under older names": (
        GPTQ | {"quant_method": "intel/auto-round", "backend": "auto_round:exllamav2", "sym": True},
        encoding(gptq, symmetric=True),
        WeightFormat(4, 16, "float32"),
    ),
    "auto-round of AWQ": (
        AWQ | {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"},
        encoding(awq),
        OF_GROUP,
    ),
    "gptq with numbers as text": (
        {"quant_method": "gptq", "bits": "4", "group_size": "16", "sym": "false", "desc_act": None},
        encoding(gptq),
        OF_GROUP,
    ),
    "awq": (AWQ, encoding(awq), OF_GROUP),
    "awq in bfloat16": (AWQ, encoding(awq, dtype=BFLOAT16), WeightFormat(4, 16, zeros=True)),
    "packed": (compressed(), encoding(pack_quantized, symmetric=True, dtype=BFLOAT16), WeightFormat(4, 16)),
    "packed with zeros": (compressed(symmetric=False), encoding(pack_quantized, zeros=True), OF_GROUP),
    "packed in 8 bits": (
        compressed(num_bits=8, strategy="channel", group_size=None),
        encoding(pack_quantized, bits=8, symmetric=True, group=0),
        WeightFormat(8, None, "float32"),
    ),
    "packed in an order": (
        compressed(symmetric=False, actorder="group"),
        encoding(pack_quantized, zeros=True, order=True, inputs="shared", dtype=BFLOAT16),
        WeightFormat(4, 16, zeros=True, ordered=True),
    ),
    "int8": (
        compressed("int-quantized", {"num_bits": 8, "dynamic": True}, num_bits=8, strategy="channel"),
        encoding(int8, symmetric=True, group=0, dtype=np.float32),
        WeightFormat(8, None, "float32"),
    ),
    "int8 with zeros": (
        compressed("int-quantized", num_bits=8, strategy="channel", symmetric=False),
        encoding(int8, zeros=True, group=0, dtype=BFLOAT16),
        WeightFormat(8, None, zeros=True),
    ),
}

_FLOAT = {"num_bits": 8, "type": "float", "group_size": None}
_FOUR = {"num_bits": 4, "type": "float"}
_floats = partial(WeightFormat, scale_dtype="float32", floats=True)
FLOATS: dict[str, tuple[dict[str, Any], Encode, WeightFormat]] = {
    "fp8 block": (FP8, fp8("block", name="weight_scale_inv"), _floats(8, 48)),
    "modelopt fp8 block": (
        {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"},
        fp8("block of ModelOpt", block=(128, 128)),
        _floats(8, None),
    ),
    "fp8 block of powers of two": (
        FP8 | {"scale_fmt": "ue8m0"},
        fp8("block", name="weight_scale_inv", dtype=POWERS),
        _floats(8, 48, scale_dtype="bfloat16"),
    ),
    "fp8 tensor": (
        FP8 | {"weight_block_size": None, "activation_scheme": "static"},
        fp8("tensor"),
        _floats(8, None),
    ),
    "compressed fp8 tensor": (
        compressed("float-quantized", **_FLOAT, strategy="tensor"),
        fp8("tensor"),
        _floats(8, None),
    ),
    "compressed fp8 channel": (
        compressed("float-quantized", **_FLOAT, strategy="channel"),
        fp8("channel", dtype=BFLOAT16),
        _floats(8, None, scale_dtype="bfloat16"),
    ),
    "compressed fp8 block": (
        compressed("float-quantized", **_FLOAT, strategy="block", block_structure=[16, 48]),
        fp8("block"),
        _floats(8, 48),
    ),
    "compressed fp8 group": (
        compressed("float-quantized", **_FLOAT | {"group_size": 32}),
        fp8("block", (1, 32)),
        _floats(8, 32),
    ),
    "compressed mxfp8": (
        compressed("mxfp8-quantized", **_FLOAT | {"group_size": 32}),
        mxfp8(),
        _floats(8, 32, scale_dtype="bfloat16"),
    ),
    "fbgemm fp8": (
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        fp8("channel"),
        _floats(8, None),
    ),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8("tensor"), _floats(8, None)),
    "compressed nvfp4": (
        compressed("nvfp4-pack-quantized", **_FOUR, group_size=16),
        fp4("nvfp4"),
        _floats(4, 16),
    ),
    "modelopt nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, fp4("modelopt"), _floats(4, 16)),
    "compressed mxfp4": (
        compressed("mxfp4-pack-quantized", **_FOUR, group_size=32),
        fp4("mxfp4"),
        _floats(4, 32, scale_dtype="bfloat16"),
    ),
}

EVERY = INTEGERS | FLOATS
