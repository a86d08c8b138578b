"""Contract of `soft_cap`: y = cap * tanh(x / cap), element by element.

x, y: [...] float32 of one shape; y is overwritten and may be x. An element's bits depend on itself alone.

Source: Gemma Team 2024, "Gemma 2", section 2, logit soft-capping.
"""
