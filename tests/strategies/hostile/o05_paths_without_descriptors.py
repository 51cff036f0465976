# tries: change the file system without opening anything: no descriptor is needed to make, link, rename or remove
# right: every call fails; it returns (9, 9, 9) where one does not
def strategy(board, initial):
    import ctypes
    libc = ctypes.CDLL(None)
    name = b"/tmp/sandbox_without_descriptor"
    done = [libc.mkdir(name, 0o700), libc.symlink(b"/etc/passwd", name + b"_link"), libc.chmod(b"/tmp", 0o777), libc.rename(name, name + b"_2"),
            libc.link(b"/etc/hostname", name + b"_3"), libc.truncate(b"/etc/hostname", 0), libc.chdir(b"/"), libc.access(b"/", 0)]
    for leftover in (name, name + b"_2"):
        libc.rmdir(leftover)
    for leftover in (name + b"_link", name + b"_3"):
        libc.unlink(leftover)
    return (9, 9, 9) if 0 in done else (0, 0, 1)
