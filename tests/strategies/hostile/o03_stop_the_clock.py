# tries: stop, block and ignore the timer that will end it, then loop for ever
# right: "timeout"; it returns (9, 9, 9) where any of the three was possible
def strategy(board, initial):
    import ctypes
    import signal
    libc = ctypes.CDLL(None)
    zero = bytes(32)
    for which in (0, 1, 2):
        if libc.setitimer(which, zero, None) == 0:
            return (9, 9, 9)
    for attempt in (
        lambda: signal.setitimer(signal.ITIMER_PROF, 0),
        lambda: signal.signal(signal.SIGPROF, signal.SIG_IGN),
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF, signal.SIGXCPU}),
    ):
        try:
            attempt()
            return (9, 9, 9)
        except OSError:
            pass
    while True:
        pass
