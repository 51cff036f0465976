import random
def strategy(board, initial):
    def fits(r, c, n):
        if n in board[r]: return False
        for i in range(9):
            if board[i][c] == n: return False
        br, bc = r - r % 3, c - c % 3
        return all(board[br + i][bc + j] != n for i in range(3) for j in range(3))
    random.seed(sum(map(sum, board)))
    cells = [(r, c) for r in range(9) for c in range(9) if not board[r][c]]
    random.shuffle(cells)
    r, c = cells[0]
    o = [n for n in range(1, 10) if fits(r, c, n)]
    return (r, c, random.choice(o)) if o else None
