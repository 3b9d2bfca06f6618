"""KV blocks in storage that outlives the process, behind host memory: a KV tier.

``store``: what a store of bytes must do; ``directory``: a store of files. ``value``: the format of a block in it.
``kv_tier``: the threads that write and read blocks, so that no step waits for a store. ``prefetcher``: which blocks are
brought into host memory, and how long a sequence waits for them. ``address``: the flags that name a store.
"""
