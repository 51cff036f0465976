# tries: reach the kernel by older numberings (x32), and bring machine code to use the 32-bit one
# right: the process is ended or the call fails; it returns (9, 9, 9) where one works
def strategy(board, initial):
    import ctypes
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    nowhere = ctypes.c_void_p(-1).value
    for protection in (4, 5, 7):
        if libc.mmap(None, 4096, protection, 0x22, -1, 0) != nowhere:
            return (9, 9, 9)
    page = libc.mmap(None, 4096, 3, 0x22, -1, 0)
    if page != nowhere and libc.mprotect(ctypes.c_void_p(page), 4096, 5) == 0:
        return (9, 9, 9)
    return (9, 9, 9) if libc.syscall(0x40000000 + 41, 2, 1, 0) >= 0 else (0, 0, 1)
