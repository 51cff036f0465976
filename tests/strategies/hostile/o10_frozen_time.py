# tries: stop time for a judge that measures it in the same process, then loop for ever
# right: "timeout": the kernel's timer does not ask Python what time it is
def strategy(board, initial):
    import time
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, lambda: 0.0)
        setattr(time, name + "_ns", lambda: 0)
    while True:
        pass
