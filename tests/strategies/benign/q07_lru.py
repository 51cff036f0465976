from functools import lru_cache, partial, reduce
@lru_cache(maxsize=None)
def box(r, c): return tuple((r//3*3+i, c//3*3+j) for i in range(3) for j in range(3))
def strategy(board, initial):
    for r in range(9):
        for c in range(9):
            if board[r][c]: continue
            s = reduce(lambda a, b: a | b, [{board[i][j]} for i, j in box(r, c)], set(board[r]))
            s |= {board[i][c] for i in range(9)}
            f = sorted(set(range(1, 10)) - s)
            if len(f) == 1: return r, c, f[0]
    return None
