def strategy(board, initial):
    count = 0
    def outer():
        def inner():
            nonlocal count
            count += 1
            return count
        return inner
    f = outer()
    [f() for _ in range(5)]
    def fits(r, c, n):
        if n in board[r]: return False
        for i in range(9):
            if board[i][c] == n: return False
        br, bc = r - r % 3, c - c % 3
        return all(board[br + i][bc + j] != n for i in range(3) for j in range(3))
    best = None
    for r in range(9):
        for c in range(9):
            if board[r][c] == 0:
                o = [n for n in range(1, 10) if fits(r, c, n)]
                if best is None or len(o) < len(best[2]): best = (r, c, o)
    return best[0], best[1], best[2][0]
