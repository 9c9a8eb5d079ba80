"""HDF5's fletcher32 checksum over many bytes at once, for chunks that do not pass through HDF5's filters.

It is that of `H5_checksum_fletcher32` in HDF5's H5checksum.c: of 16-bit big-endian words w_0 ... w_(n-1), sum1 is
that of the words, sum2 that of all values which sum1 has had, w_i counted n - i times; both modulo 65535, where a
sum is 0 only if all words are, and 65535 otherwise.
"""

import numpy as np

MODULUS = 65535
CHECKSUM_NBYTES = 4
WORDS_PER_ROW = 4096
MOST_ROWS = 65537  # Of words that their sum still fits into 32 bits.
COLUMNS = np.arange(WORDS_PER_ROW, dtype=np.uint64)
FROM_END = COLUMNS[::-1] + 1


def fletcher32(data: np.ndarray) -> bytes:
    """The checksum of a C-contiguous array's bytes, as HDF5 puts it behind a chunk.

    Words are summed as they lie in memory, little-endian: to swap the bytes of a word is to multiply it by 256,
    modulo 65535.
    """
    data = data.reshape(-1).view(np.uint8)
    num_words, is_odd = divmod(len(data), 2)
    sum1, sum2 = _sums(data[: 2 * num_words].view("<u2"))
    if is_odd:  # The last byte is the upper half of one more word.
        sum1 += int(data[-1])
        sum2 += sum1
    if sum1 == 0:
        return bytes(CHECKSUM_NBYTES)
    low, high = ((256 * total - 1) % MODULUS + 1 for total in (sum1, sum2))
    return (low | high << 16).to_bytes(CHECKSUM_NBYTES, "little")


def _sums(words: np.ndarray) -> tuple[int, int]:
    """The exact sum of the words; modulo 65535, the sum with word i counted n - i times.

    Word i = row * WORDS_PER_ROW + column counts (n - row * WORDS_PER_ROW) - column times: sums over rows and over
    columns do for all products.
    """
    num_rows, num_left = divmod(len(words), WORDS_PER_ROW)
    body = words[: len(words) - num_left].reshape(num_rows, WORDS_PER_ROW)
    left = words[len(words) - num_left :].astype(np.uint64)
    of_rows = np.add.reduce(body, axis=1, dtype=np.uint32)
    of_columns = np.add.reduce(body, axis=0, dtype=np.uint32 if num_rows <= MOST_ROWS else np.uint64)
    times = np.arange(len(words), num_left, -WORDS_PER_ROW, np.uint64) % MODULUS
    sum2 = int(times @ (of_rows % MODULUS)) - int(COLUMNS @ (of_columns % MODULUS))
    sum2 += int(FROM_END[WORDS_PER_ROW - num_left :] @ left)
    return int(np.add.reduce(of_rows, dtype=np.uint64) + np.add.reduce(left)), sum2
