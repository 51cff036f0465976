def strategy(board, initial):
    s = ''.join(str(x) for row in board for x in row)
    for i, ch in enumerate(s):
        if ch == '0':
            r, c = divmod(i, 9)
            used = {s[r*9+k] for k in range(9)} | {s[k*9+c] for k in range(9)} | {s[(r//3*3+k//3)*9 + c//3*3+k%3] for k in range(9)}
            o = [d for d in '123456789' if d not in used]
            if len(o) == 1: return r, c, int(o[0])
    return '{}'.format(s)
