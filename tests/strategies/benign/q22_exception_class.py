class Found(Exception):
    def __init__(self, move):
        super().__init__(move)
        self.move = move
def strategy(board, initial):
    def fits(r, c, n):
        if n in board[r]: return False
        for i in range(9):
            if board[i][c] == n: return False
        br, bc = r - r % 3, c - c % 3
        return all(board[br + i][bc + j] != n for i in range(3) for j in range(3))
    try:
        for r in range(9):
            for c in range(9):
                for n in range(1, 10):
                    if board[r][c] == 0 and fits(r, c, n): raise Found((r, c, n))
    except Found as f: return f.move
