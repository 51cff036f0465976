from dataclasses import dataclass, field
import heapq
@dataclass(order=True)
class C:
    n: int
    r: int
    c: int
    o: list = field(compare=False, default_factory=list)
def strategy(board, initial):
    def fits(r, c, n):
        if n in board[r]: return False
        for i in range(9):
            if board[i][c] == n: return False
        br, bc = r - r % 3, c - c % 3
        return all(board[br + i][bc + j] != n for i in range(3) for j in range(3))
    h = []
    for r in range(9):
        for c in range(9):
            if not board[r][c]:
                o = [n for n in range(1, 10) if fits(r, c, n)]
                heapq.heappush(h, C(len(o), r, c, o))
    x = heapq.heappop(h)
    return (x.r, x.c, x.o[0])
