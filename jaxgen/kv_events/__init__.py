"""Events of KV blocks for routers and indexes, over ZeroMQ as vLLM sends them."""
