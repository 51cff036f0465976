def strategy(board, initial):
    def fits(r, c, n):
        if n in board[r]: return False
        for i in range(9):
            if board[i][c] == n: return False
        br, bc = r - r % 3, c - c % 3
        return all(board[br + i][bc + j] != n for i in range(3) for j in range(3))
    for n in range(1, 10):
        for r in range(9):
            p = [c for c in range(9) if board[r][c] == 0 and fits(r, c, n)]
            if len(p) == 1: return (r, p[0], n)
        for c in range(9):
            p = [r for r in range(9) if board[r][c] == 0 and fits(r, c, n)]
            if len(p) == 1: return (p[0], c, n)
