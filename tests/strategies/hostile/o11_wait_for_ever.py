# tries: wait without computing, which no limit of processor time ends: a lock taken twice, sleeps, an empty queue
# right: it ends at once (each is refused), or "timeout"; it returns (9, 9, 9) where it slept
def strategy(board, initial):
    import ctypes
    import time
    libc = ctypes.CDLL(None)
    for number in (35, 230, 34, 7, 23, 232, 270, 271):
        start = time.monotonic()
        libc.syscall(number, bytes([1] + [0] * 15), bytes(16), 0, 0, 0)
        if time.monotonic() - start > 0.5:
            return (9, 9, 9)
    try:
        time.sleep(3600)
        return (9, 9, 9)
    except OSError:
        pass
    import queue
    queue.Queue().get()
    return (9, 9, 9)
