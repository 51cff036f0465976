# tries: raise its own limits, by name and by number, or drop the filter by adding one that allows all
# right: nothing of it is possible; it returns (9, 9, 9) where it is
def strategy(board, initial):
    import ctypes
    import resource
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        try:
            resource.setrlimit(what, (1 << 40, 1 << 40))
            return (9, 9, 9)
        except (ValueError, OSError):
            pass
    everything = (ctypes.c_uint64 * 1)(0x7FFF000000000006)
    program = (ctypes.c_uint64 * 2)(1, ctypes.addressof(everything))
    if syscall(317, 1, 0, program) == 0 or syscall(157, 22, 2, program, 0, 0) == 0:
        return (9, 9, 9)
    if syscall(302, 0, 9, None, ctypes.create_string_buffer(16)) == 0:
        return (9, 9, 9)
    return (0, 0, 1)
