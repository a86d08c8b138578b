"""Contract of `gather_rows`: y[i] = x[rows[i]] * factor: an embedding's look-up, or the step's output rows.

x: [n, width]; rows: [m] int32, each in [0, n); y: [m, width] in its own type, overwritten. With factor 1 a
row is copied bit for bit, or rounded once where y is narrower. Else the product is float32, rounded once.

`gather_shard`: x is the part of a larger table from row `first` on, `rows` name rows of the whole one, y has
x's type; a row that lies elsewhere becomes zeros, so that the sum over all parts is the whole table's row.
"""
