# tries: leave a mark that the next program would find, in modules, builtins, and the state of random
# right: the next program starts from the same state; it returns (9, 9, 9) where it finds the mark (play it twice)
def strategy(board, initial):
    import builtins
    import math
    import random
    import sys
    if board == initial and (hasattr(math, "mark") or hasattr(builtins, "mark") or "mark" in sys.modules):
        return (9, 9, 9)                                  # at the first move of a game
    math.mark = builtins.mark = True
    sys.modules["mark"] = math
    random.seed("mark")
    builtins.len = lambda thing: 3
    return (0, 0, 1)
