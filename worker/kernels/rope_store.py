"""Contract of `rope_store`: rotate q and k, write k and v of the step's tokens into the KV memory.

qkv: [rows, (q_heads + 2 * kv_heads) * head_dim] float32, heads side by side, q then k then v.
cos, sin: [rows, head_dim] float32; pair i of a head is (i, i + head_dim / 2), so both halves of cos are equal
and the first half of sin is the negative of the second: y = x * cos + swap_halves(x) * sin.
keys, values: [n, head_dim] float32, rows of one layer's pages. store_rows: [tokens * kv_heads] int64, where
token t's head h goes; rows of qkv beyond `tokens` are padding and stored nowhere.
q: [rows, q_heads * head_dim] float32, overwritten.

On a GPU qkv and q are bfloat16 or float16 as well and the KV memory is pages of any format (`kv_pages`): a
pair is rotated in float32 and rounded once, to what is stored. There cos and sin are whole tables,
[positions, head_dim / 2], and every row has its position and its slot: page * page_size + token of the page.
Rows that are padding have a slot of a page that is nobody's. With weights of `qk_norm` the heads go through
that first, bit for bit as if it came before.

Source: Su et al. 2021, "RoFormer".
"""
