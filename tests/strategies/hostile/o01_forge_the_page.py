# tries: write a perfect score into the memory that the child shares with the zygote, then leave
# right: the moves are replayed, so the outcome is not "solved", and no move counts that the rules do not allow
def strategy(board, initial):
    import ctypes
    import sys
    frame = sys._getframe()
    while frame is not None:
        for thing in frame.f_locals.values():
            if type(thing).__name__ == "mmap" and not thing.closed:
                thing[0:200] = bytes([1]) + bytes(199)
                thing[200:443] = bytes([0, 0, 9]) * 81
        frame = frame.f_back
    ctypes.CDLL(None)._exit(0)
