class Solver:
    __slots__ = ('b', '_memo')
    def __init__(self, b):
        self.b = b
        self._memo = {}
    def __getitem__(self, rc): return self.b[rc[0]][rc[1]]
    def __contains__(self, n): return any(n in r for r in self.b)
    @staticmethod
    def units(r, c):
        return [(r, k) for k in range(9)] + [(k, c) for k in range(9)] + [(r//3*3+k//3, c//3*3+k%3) for k in range(9)]
    @property
    def empty(self): return [(r, c) for r in range(9) for c in range(9) if not self[r, c]]
    @classmethod
    def of(cls, b): return cls([r[:] for r in b])
    def options(self, rc): return sorted(set(range(1, 10)) - {self[x] for x in self.units(*rc)})
def strategy(board, initial):
    s = Solver.of(board)
    rc = min(s.empty, key=lambda x: len(s.options(x)))
    return (*rc, s.options(rc)[0])
