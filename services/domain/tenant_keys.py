"""Names in Redis that more than one service reads. All of them have one hash tag."""

HEAD_KEY = "quire:{tenants}:head"
"""HASH: `store` and `version` of tenants and keys."""
KV_CAPS_KEY = "quire:{tenants}:kv_caps"
"""JSON of tenant -> most KV pages over all workers, as the gateways' admin door wrote it last."""
