"""Fair shares of a limit. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fair_shares"]


def fair_shares(total: int, wants: Sequence[int]) -> list[int]:
    """Share `total` so that nobody gets more than it wants, and who gets less than it wants has no less than others.

    What is left over by less than one each goes to the first of those that want it. (Max-min fairness:
    Bertsekas and Gallager, Data Networks, section 6.5.2.)
    """
    shares = [0] * len(wants)
    left = max(0, total)
    hungry = [at for at, want in enumerate(wants) if want > 0]
    while hungry and left:
        each = left // len(hungry)
        if not each:
            for at in hungry[:left]:
                shares[at] += 1
            break
        for at in hungry:
            more = min(each, wants[at] - shares[at])
            shares[at] += more
            left -= more
        hungry = [at for at in hungry if shares[at] < wants[at]]
    return shares
