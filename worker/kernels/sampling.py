"""Contract of `sampling`: draw a token for each row of logits, on the device, without a full sort.

The reference is `worker.engine.sampler`, whose order of operations and ties these kernels keep: repetition
penalty, presence and frequency penalty, bias, forbidden ids, temperature, top_k, top_p, min_p, then the
inverse of the cumulative weights in id order at `counter_random.uniform(seed, choice, position)`, the same 53
bits. Ids are equal but where a draw falls within rounding of the edge between two of them.

logits: [rows, vocab] float32, unchanged. `numbers` [rows, NUMBERS] float64 and `integers` [rows, INTEGERS]
int64 hold a row's parameters in the columns named here. A row's changes of single logits are entries `FIRST`
to `LAST` of `entries` [n, 3] int32 (id, whether it was in prompt or output, how often in the output) and of
`biases` [n] float32; a row's ids are distinct, and a forbidden one has bias -inf.

token_ids [rows] int32; failed [rows] int32, 1 where the logits held NaN or +inf or were all -inf: that row's
id means nothing, the others are drawn. logprobs [rows] float32 of the drawn id, where NUM_LOGPROBS is not -1;
top_ids [rows, n] int32 and top_logprobs [rows, n] float32: the NUM_LOGPROBS likeliest of the raw logits.

A row is one program's in every kernel, so it is the same in any batch. Weights lie in [0, 1], where a float's
bits grow with it: a histogram of exponents says from which power of two on weights can matter, those are
collected in id order, and thresholds are found by halving the interval of bits that they lie in.

Worked number: of 128,256 logits with one far above the others, top_p 0.95 collects that one alone.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; Holtzman et al. 2020, "The Curious
Case of Neural Text Degeneration", for top_p; Nguyen et al. 2024, "Min-p Sampling".
"""

TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY = range(6)
NUMBERS = 6
SEED, POSITION, CHOICE, TOP_K, NUM_LOGPROBS, FIRST, LAST, TARGET = range(8)
"""SEED: 64 bits in two's complement. NUM_LOGPROBS: -1 for none. TARGET: id to score, -1 to draw one."""
INTEGERS = 8
STATES = 3
"""Numbers that a row's kernels leave for each other."""
LOWEST_LOGPROB = -9999.0
"""Stands for the logarithm of zero."""
