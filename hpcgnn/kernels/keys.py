"""Keys of draws: what the kernels mix with the name of a row."""

_MASK = (1 << 64) - 1


def key_of(*fields: int) -> int:
    """Return 64 well-mixed bits of some integers (the finaliser of MurmurHash3 over them)."""
    word = 0x9E3779B97F4A7C15
    for field in fields:
        word = (word ^ (field & _MASK)) * 0xFF51AFD7ED558CCD & _MASK
        word ^= word >> 33
        word = word * 0xC4CEB9FE1A85EC53 & _MASK
        word ^= word >> 33
    return word
