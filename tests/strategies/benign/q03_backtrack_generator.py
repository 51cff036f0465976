def strategy(board, initial):
    def solve(b):
        for r in range(9):
            for c in range(9):
                if not b[r][c]:
                    for n in range(1, 10):
                        if ok(b, r, c, n):
                            b[r][c] = n
                            yield from solve(b)
                            b[r][c] = 0
                    return
        yield [row[:] for row in b]
    def ok(b, r, c, n): return n not in b[r] and all(b[i][c] != n for i in range(9)) and all(b[r//3*3+i][c//3*3+j] != n for i in range(3) for j in range(3))
    s = next(solve([row[:] for row in board]))
    return next((r, c, s[r][c]) for r in range(9) for c in range(9) if not board[r][c])
