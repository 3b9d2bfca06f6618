"""/v1/messages, Anthropic's API for conversations: its endpoints, and the blocks and events that they build."""
