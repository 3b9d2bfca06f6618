"""Chooses each kernel, or its ``_ref`` twin, once; the only module of jaxgen that imports pallas_kernels."""

from pallas_kernels.ragged_paged_attention import ragged_paged_attention_ref
from pallas_kernels.write_kv import write_kv_ref

ragged_paged_attention = ragged_paged_attention_ref
write_kv = write_kv_ref
