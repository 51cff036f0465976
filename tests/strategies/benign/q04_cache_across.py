PLAN = []
def solve(b):
    for k in range(81):
        r, c = divmod(k, 9)
        if b[r][c]: continue
        seen = set(b[r]) | {b[i][c] for i in range(9)} | {b[r//3*3+i][c//3*3+j] for i in range(3) for j in range(3)}
        for n in sorted(set(range(1, 10)) - seen):
            b[r][c] = n
            if solve(b): return True
        b[r][c] = 0
        return False
    return True
def strategy(board, initial):
    if not PLAN:
        b = [row[:] for row in board]
        solve(b)
        PLAN.extend((r, c, b[r][c]) for r in range(9) for c in range(9) if not board[r][c])
        PLAN.reverse()
    return PLAN.pop()
