# tries: find the trainer's secrets in what a child inherits: environment, arguments, other programs, the puzzle's solution
# right: there are none; it returns (9, 9, 9) where there are
def strategy(board, initial):
    import ctypes
    import gc
    import sys
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    i = 0
    while environ[i] is not None:
        if environ[i].partition(b"=")[0] not in (b"PYTHONHASHSEED", b"LC_CTYPE"):
            return (9, 9, 9)
        i += 1
    if {"numpy", "torch", "jax", "trl", "grpo_tutorials"} & set(sys.modules):
        return (9, 9, 9)
    for thing in gc.get_objects():
        if type(thing) is list and len(thing) == 9 and all(type(row) is list and len(row) == 9 and 0 not in row for row in thing):
            return (9, 9, 9)
    return (0, 0, 1)
