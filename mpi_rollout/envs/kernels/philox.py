"""Random numbers that are a function of their place: Philox4x32-10 (Salmon et al. 2011, "Random123").

One source for all backends: `philox` takes Python ints, arrays and tensors of int64, and is what Numba compiles.
Products of two 32-bit words do not fit into a signed 64-bit integer.  They wrap around, and the words that the masks
take are right all the same.
"""

WORD = 0xFFFFFFFF
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
NUM_ROUNDS = 10
SCALE = 2.0**-32


def philox(word_0, word_1, word_2, word_3, key_0, key_1):
    """Return the four 32-bit words of one block.

    Parameters
    ----------
    word_0, word_1, word_2, word_3
        The counter: integers from 0 to 2**32 - 1, or arrays or tensors of int64 with such values.
    key_0, key_1
        The key, integers of the same range.
    """
    for _ in range(NUM_ROUNDS):
        product_0, product_1 = MULTIPLIER_0 * word_0, MULTIPLIER_1 * word_2
        word_0, word_2 = ((product_1 >> 32) & WORD) ^ word_1 ^ key_0, ((product_0 >> 32) & WORD) ^ word_3 ^ key_1
        word_1, word_3 = product_1 & WORD, product_0 & WORD
        key_0, key_1 = (key_0 + WEYL_0) & WORD, (key_1 + WEYL_1) & WORD
    return word_0, word_1, word_2, word_3


def key_words(seed: int) -> tuple[int, int]:
    """Return the key of a seed, 0 <= seed < 2**64: its low and its high 32 bits."""
    return seed & WORD, seed >> 32
