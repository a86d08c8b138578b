"""Contract of `paged_attention`: causal softmax attention over keys and values in pages.

q, out: [rows, q_heads * head_dim] float32; keys, values: [n, head_dim] float32, rows of one layer's pages.
On a GPU q and out are bfloat16 or float16, and pages hold that type or int8 with scales (`kv_pages`);
products are of q's type, sums and softmax float32, and weights are rounded to q's type before they meet the
values. What lies past the end of a sequence is not read there either.
Query head h reads key-value head h / (q_heads / kv_heads).

A row's bits depend on its own sequence alone.
Queries go in tiles of `query_tile` tokens of one sequence, cut at multiples of `query_tile` positions;
keys in blocks of `KEY_BLOCK` from position 0. So every product has one fixed shape, and a row adds its
blocks up in one order, from the first to the one with its own position. Blocks beyond it, where a tile
has them for its later rows, add exact zeros; so do blocks before its window, where a tile has them for
its earlier rows. Blocks outside the window of all rows of a tile are not read.

Scores are q . k * scale, then soft_cap * tanh(score / soft_cap) unless soft_cap is 0. A row at position p
sees keys p - window + 1 to p; all up to p where window is 0.
Keys before every window are not read, but their pages stay: the pool knows nothing of layers.

Memory that no token of the sequence wrote is never read: what lies past the end comes from a row of zeros.

Source: Kwon et al. 2023, "PagedAttention"; Vaswani et al. 2017 for the formula; Gemma Team 2024, "Gemma 2",
section 2 for the cap; Beltagy et al. 2020, "Longformer", section 3.1 for the window.
"""

KEY_BLOCK = 128
"""Keys in a block of the reference. Part of the numerics: changing it changes bits. The GPU's are its own."""
