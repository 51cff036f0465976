# tries: run on after the last move: an exit handler, a finalizer, and a generator that will not be closed
# right: the child ends without asking; nothing is left behind, and the host does not wait
def strategy(board, initial):
    import atexit
    import weakref

    def for_ever(*args):
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass

    class Undead:
        __del__ = for_ever

    def stubborn():
        while True:
            try:
                yield
            except BaseException:
                pass

    generator = stubborn()
    next(generator)
    atexit.register(for_ever)
    if board == initial:
        strategy.undead, strategy.generator = Undead(), generator
        weakref.finalize(strategy, for_ever)
    return (0, 0, 1)
