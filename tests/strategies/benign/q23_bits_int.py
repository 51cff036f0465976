def strategy(board, initial):
    rows=[0]*9; cols=[0]*9; boxes=[0]*9
    for r in range(9):
        for c in range(9):
            if v := board[r][c]:
                m = 1 << v
                rows[r] |= m; cols[c] |= m; boxes[r//3*3+c//3] |= m
    return min((( 0x3fe & ~(rows[r]|cols[c]|boxes[r//3*3+c//3])).bit_count(), r, c, (0x3fe & ~(rows[r]|cols[c]|boxes[r//3*3+c//3])).bit_length()-1) for r in range(9) for c in range(9) if not board[r][c])[1:]
