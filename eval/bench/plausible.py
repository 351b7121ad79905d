"""Is a measured speed-up possible at all?"""


def exceeds_tau(speedup: float, tau: float) -> str | None:
    """Return a warning where a speed-up over plain decoding is larger than decoding can make it.

    A round decides tau tokens on average, and its verification takes at least as long as the
    forward pass of one token. What lies above tau comes from a machine whose speed changed.
    """
    if speedup <= tau:
        return None
    return (
        f"a speed-up of {speedup:.2f} exceeds tau {tau:.2f}, though a verification costs at least "
        "one plain forward pass: the timing is noise, measure again on an idle machine"
    )
