"""Seeds derived from several numbers. Importing this does not import torch."""


def mix(*numbers: int) -> int:
    """A seed of 63 bits that depends on the numbers and their order (splitmix64's finaliser after each).

    >>> mix(1, 2) == mix(1, 2), mix(1, 2) == mix(2, 1)
    (True, False)
    """
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state + (number & 0xFFFFFFFFFFFFFFFF)) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
